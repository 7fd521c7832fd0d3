"""Wide: the weighted sum of two heads, and the logistic regression that finds the weights."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from datamodules.batch import Targets
from heads import Linear, Wide
from heads.base import Ranking
from heads.tail.wide import RIDGE, START, fit_pairs, union
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.httn import seeded, wrap
from tests.support.rerank import Given, long_tail, ranking, transition
from zoo.core.errors import UserError


def build(space, inner=Given, engine=None, **settings):
    engine = engine or partial(Given, start=space.num_labels)
    return Wide(2 * space.num_labels, space, inner, engine, **settings)


def two_views(documents=400, weights=(0.7, 1.6, -0.4), seed=0):
    """Scores of two independent heads, and labels drawn from a known mixture of them."""
    generator, num_labels = seeded(seed), 30
    logits = 2 * torch.randn(documents, 2 * num_labels, generator=generator) - 1
    chance = (weights[0] * logits[:, :num_labels] + weights[1] * logits[:, num_labels:] + weights[2]).sigmoid()
    dense = torch.rand(documents, num_labels, generator=generator) < chance
    targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in dense])
    counts = dense.sum(0)
    space = label_space(counts.tolist(), documents)
    return space, targets, logits.sigmoid()


def slow(one, other, weights):
    """Scores of all labels in either list, label by label."""
    rows = []
    for scores1, labels1, scores2, labels2 in zip(one.scores, one.labels, other.scores, other.labels, strict=True):
        lists = [
            {label: score for label, score in zip(labels.tolist(), scores.tolist(), strict=True) if label >= 0}
            for scores, labels in ((scores1, labels1), (scores2, labels2))
        ]
        row = {}
        for label in lists[0] | lists[1]:
            p = [found.get(label, min(found.values(), default=0.0)) for found in lists]
            p = np.clip(p, 1e-7, 1 - 1e-7)
            row[label] = weights[0] * np.log(p[0] / (1 - p[0])) + weights[1] * np.log(p[1] / (1 - p[1])) + weights[2]
        rows.append(row)
    return rows


@pytest.mark.parametrize("candidates", [5, 30])
def test_scores_equal_a_loop(candidates):
    space, _, scores = two_views(documents=20)
    head = build(space, candidates=candidates)
    head.weights.copy_(torch.tensor([[0.5, 2.0, -1.0]]))
    one, other = head.inner.rank(wrap(scores), candidates), head.engine.rank(wrap(scores), candidates)
    got = head.rank(wrap(scores), candidates)
    for row, labels, values in zip(slow(one, other, (0.5, 2.0, -1.0)), got.labels.tolist(), got.scores, strict=True):
        best = sorted(row, key=lambda label: -row[label])[:candidates]
        assert labels == best
        expected = torch.tensor([row[label] for label in best]).sigmoid().float()
        assert torch.allclose(values, expected, atol=1e-5)


def test_labels_that_one_head_misses_have_its_lowest_score():
    labels, logits = union(ranking([[0.9, 0.2]], [[4, 1]]), ranking([[0.8, 0.7, 0.0]], [[1, 3, -1]]))
    assert labels.tolist() == [[4, 1, -1, 3, -1]]
    got = logits[0, [0, 1, 3]].sigmoid()
    assert torch.allclose(got, torch.tensor([[0.9, 0.7], [0.2, 0.8], [0.2, 0.7]]), atol=1e-6)


class Waiting(Given):
    pending = ("fit",)

    def rank(self, features, k):
        return Ranking(torch.zeros(len(features.pooled), k), torch.full((len(features.pooled), k), -1))


@pytest.mark.parametrize("order", [(Given, Waiting), (Waiting, Given)])
def test_until_both_heads_are_trained_one_ranks_alone(order):
    space, _, scores = two_views(documents=20)
    head, alone = build(space, *order), Given(1, space)
    features = wrap(scores)
    got, expected = head.rank(features, 5), alone.rank(features, 5)
    assert torch.equal(got.labels, expected.labels)
    assert torch.equal(got.scores, expected.scores)


@pytest.mark.parametrize("fit", [False, True])
def test_two_equal_heads_rank_as_one(fit):
    space, targets, scores = long_tail(documents=200)
    head = Wide(40, space, Given, Given)
    if fit:
        head.fit_weights(transition(scores, targets))
        assert head.weights[0, 0].item() == pytest.approx(head.weights[0, 1].item(), abs=1e-4)
    got, expected = head.rank(wrap(scores), 10), head.inner.rank(wrap(scores), 10)
    assert torch.equal(got.labels, expected.labels)


def test_the_fit_recovers_known_weights():
    space, targets, scores = two_views(documents=2000)
    head, context = build(space), transition(scores, targets, batch_size=128)
    head.fit_weights(context)
    assert head.weights[0].tolist() == pytest.approx([0.7, 1.6, -0.4], abs=0.06)
    assert context.logged == {
        f"wide/all/{name}": pytest.approx(value)
        for name, value in zip(("inner", "engine", "bias"), head.weights[0].tolist(), strict=True)
    }


def test_the_fit_equals_a_slow_reference():
    space, targets, scores = two_views(documents=60)
    head = build(space, candidates=12)
    head.fit_weights(transition(scores, targets))
    one, other = head.inner.rank(wrap(scores), 12), head.engine.rank(wrap(scores), 12)
    inputs, hits, truth = [], [], targets.dense(30)
    unit = [slow(one, other, weights) for weights in ((1, 0, 0), (0, 1, 0))]
    for document, (first, second) in enumerate(zip(*unit, strict=True)):
        for label in first:
            inputs.append([first[label], second[label], 1.0])
            hits.append(float(truth[document, label]))
    x, y = np.array(inputs), np.array(hits)

    def loss(w):
        return (np.logaddexp(0, x @ w) - y * (x @ w)).mean() + RIDGE / 2 * np.square(w - START).sum()

    reference = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
    assert head.weights[0].tolist() == pytest.approx(reference.tolist(), abs=1e-4)


def test_rare_labels_can_have_their_own_weights():
    space, targets, scores = two_views(documents=400)
    space.counts[20:] = [5] * 10  # as if training had hardly seen them
    noise = torch.rand(400, 10, generator=seeded(1))
    scores[:, 20:30] = noise  # what the first head says of them means nothing
    head = build(space, by="frequency")
    head.fit_weights(transition(scores, targets))
    few, many = head.weights[0], head.weights[2]
    assert abs(float(few[0])) < 0.15
    assert float(many[0]) > 0.5
    assert head.label_class.tolist() == space.frequency_class()[:30].tolist()


def test_classes_with_few_positives_share_weights():
    space, targets, scores = two_views(documents=600)
    assert min(space.counts) > 100
    space.counts[29] = 5
    lists = [[i for i in row.tolist() if i != 29] for row in targets.indices.split(targets.counts.tolist())]
    together, apart = build(space), build(space, by="frequency")
    for head in (together, apart):
        head.fit_weights(transition(scores, Targets.from_lists(lists)))
    assert torch.equal(apart.weights[0], together.weights[0])
    assert torch.equal(apart.weights[1], apart.weights[0])  # none is of medium frequency
    assert not torch.equal(apart.weights[2], together.weights[0])


def test_separable_pairs_have_finite_weights():
    logits = torch.tensor([[3.0, 3.0], [2.0, 2.0], [-2.0, -2.0], [-3.0, -3.0]])
    weights, right = fit_pairs(logits, torch.tensor([True, True, False, False]), lambda value: value)
    assert weights.isfinite().all()
    assert weights.max() < 20
    assert right == 2


def test_two_processes_find_the_same_weights():
    torch.manual_seed(0)
    logits, hits = torch.randn(900, 2), torch.rand(900) < 0.4
    alone, _ = fit_pairs(logits, hits, lambda value: value)
    barrier, sent, found = threading.Barrier(2, timeout=30), {}, {}

    def process(rank):
        def total(value):
            sent[rank] = value.clone()
            barrier.wait()
            result = sent[0] + sent[1]
            barrier.wait()
            return result

        found[rank], _ = fit_pairs(logits[rank::2], hits[rank::2], total)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], alone, atol=1e-8)


def test_documents_without_positive_candidates_are_rejected():
    space, _, scores = two_views(documents=20)
    with raises(UserError, "fit_weights"):
        build(space).fit_weights(transition(scores, Targets.from_lists([[]] * 20)))


def test_rankings_of_both_heads():
    space, _, scores = two_views(documents=20)
    head = build(space)
    found = head.rankings(wrap(scores), 5)
    assert list(found) == ["", "inner", "engine"]
    assert torch.equal(found[""].labels, head.rank(wrap(scores), 5).labels)
    assert torch.equal(found["engine"].labels, head.engine.rank(wrap(scores), 5).labels)


def test_loss_and_requirements_are_those_of_the_heads():
    space, targets, scores = two_views(documents=20)
    head = build(space, partial(Linear, layers=2), partial(Linear, layers=3))
    assert head.needs_layers == 3
    head = build(space, Linear)
    own, inner = (each.loss(wrap(scores), targets, "x")["loss"] for each in (head, head.inner))
    assert torch.equal(own, inner)


def test_fit_weights_must_come_last():
    space, _, _ = two_views(documents=20)
    build(space).check_plan(["engine.fit", "fit_weights"])
    with raises(UserError, "fit_weights"):
        build(space).check_plan(["fit_weights", "engine.fit"])


def test_ranked_by_the_engine_alone_once_it_is_fitted():
    space, _, scores = two_views(documents=20)
    head, features = build(space, ranked_by="engine"), wrap(scores)
    mixed, engine = build(space).rank(features, 5), head.engine.rank(features, 5)
    assert torch.equal(head.rank(features, 5).scores, engine.scores)
    found = head.rankings(features, 5)
    assert list(found) == ["", "inner", "both"]
    assert torch.equal(found[""].labels, engine.labels)
    assert torch.equal(found["both"].labels, mixed.labels)
    waiting = build(space, Given, Waiting, ranked_by="engine")
    assert torch.equal(waiting.rank(features, 5).labels, Given(1, space).rank(features, 5).labels)
    assert torch.equal(waiting.rankings(features, 5)[""].labels, waiting.rank(features, 5).labels)
    with raises(UserError, "fit_weights", "ranked_by=engine"):
        head.check_plan(["engine.fit", "fit_weights"])
