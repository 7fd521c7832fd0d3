"""Wide: two heads added up, and the weights that a logistic regression finds for them."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads import Linear, Wide
from heads.base import Ranking
from heads.wide import RIDGE, START, newton, union
from tests.unit.httn import seeded, wrap
from tests.unit.rerank import Context, Given, long_tail, ranking


def build(space, inner=Given, engine=None, **settings):
    engine = engine or partial(Given, start=space.num_labels)
    return Wide(2 * space.num_labels, space, inner, engine, **settings)


def two_views(documents=400, weights=(0.7, 1.6, -0.4), seed=0):
    """Logits of two independent heads, labels drawn from a known mixture of them, (scores of both, targets, space)."""
    generator, num_labels = seeded(seed), 30
    logits = 2 * torch.randn(documents, 2 * num_labels, generator=generator) - 1
    chance = (weights[0] * logits[:, :num_labels] + weights[1] * logits[:, num_labels:] + weights[2]).sigmoid()
    dense = torch.rand(documents, num_labels, generator=generator) < chance
    targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in dense])
    counts = dense.sum(0)
    space = LabelSpace([f"l{i}" for i in range(num_labels)], counts.tolist(), documents, vocab_size=9)
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
def test_scores_are_those_of_a_slow_loop(candidates):
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


def test_what_one_has_not_ranked_has_its_lowest_score():
    labels, logits = union(ranking([[0.9, 0.2]], [[4, 1]]), ranking([[0.8, 0.7, 0.0]], [[1, 3, -1]]))
    assert labels.tolist() == [[4, 1, -1, 3, -1]]
    got = logits[0, [0, 1, 3]].sigmoid()
    assert torch.allclose(got, torch.tensor([[0.9, 0.7], [0.2, 0.8], [0.2, 0.7]]), atol=1e-6)


def test_a_head_that_has_ranked_nothing_leaves_the_other_as_it_is():
    nothing = ranking([[0.0, 0.0]], [[-1, -1]])
    labels, logits = union(nothing, ranking([[0.8, 0.7]], [[1, 3]]))
    assert labels.tolist() == [[-1, -1, 1, 3]]
    assert logits[0, 2, 0] == logits[0, 3, 0]


class Waiting(Given):
    pending = ("fit",)

    def rank(self, features, k):
        return Ranking(torch.zeros(len(features.pooled), k), torch.full((len(features.pooled), k), -1))


@pytest.mark.parametrize("order", [(Given, Waiting), (Waiting, Given)])
def test_until_both_are_there_the_scores_are_those_of_the_one_that_is(order):
    space, _, scores = two_views(documents=20)
    head, alone = build(space, *order), Given(1, space)
    features = wrap(scores)
    got, expected = head.rank(features, 5), alone.rank(features, 5)
    assert torch.equal(got.labels, expected.labels)
    assert torch.equal(got.scores, expected.scores)


@pytest.mark.parametrize("fit", [False, True])
def test_two_that_are_the_same_rank_as_one(fit):
    space, targets, scores = long_tail(documents=200)
    head = Wide(40, space, Given, Given)
    if fit:
        head.fit_weights(Context(scores, targets))
        assert head.weights[0, 0].item() == pytest.approx(head.weights[0, 1].item(), abs=1e-4)
    got, expected = head.rank(wrap(scores), 10), head.inner.rank(wrap(scores), 10)
    assert torch.equal(got.labels, expected.labels)


# --- the fit


def test_it_finds_the_weights_that_labels_were_drawn_with():
    space, targets, scores = two_views(documents=2000)
    head, context = build(space), Context(scores, targets, size=128)
    head.fit_weights(context)
    assert head.weights[0].tolist() == pytest.approx([0.7, 1.6, -0.4], abs=0.06)
    assert context.logged == {
        f"wide/all/{name}": pytest.approx(value)
        for name, value in zip(("inner", "engine", "bias"), head.weights[0].tolist(), strict=True)
    }


def test_the_fit_is_that_of_a_slow_reference():
    space, targets, scores = two_views(documents=60)
    head = build(space, candidates=12)
    head.fit_weights(Context(scores, targets))
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


def test_rare_labels_can_have_weights_of_their_own():
    space, targets, scores = two_views(documents=400)
    space.counts[20:] = [5] * 10  # as if training had hardly seen them
    noise = torch.rand(400, 10, generator=seeded(1))
    scores[:, 20:30] = noise  # what the first head says of them means nothing
    head = build(space, by="frequency")
    head.fit_weights(Context(scores, targets))
    few, many = head.weights[0], head.weights[2]
    assert abs(float(few[0])) < 0.15
    assert float(many[0]) > 0.5
    assert head.label_class.tolist() == space.frequency_class()[:30].tolist()


def test_a_class_with_too_few_right_pairs_takes_the_weights_of_all():
    space, targets, scores = two_views(documents=600)
    assert min(space.counts) > 100
    space.counts[29] = 5
    lists = [[i for i in row.tolist() if i != 29] for row in targets.indices.split(targets.counts.tolist())]
    together, apart = build(space), build(space, by="frequency")
    for head in (together, apart):
        head.fit_weights(Context(scores, Targets.from_lists(lists)))
    assert torch.equal(apart.weights[0], together.weights[0])
    assert torch.equal(apart.weights[1], apart.weights[0])  # none is of medium frequency
    assert not torch.equal(apart.weights[2], together.weights[0])


def test_pairs_that_a_line_separates_have_finite_weights():
    logits = torch.tensor([[3.0, 3.0], [2.0, 2.0], [-2.0, -2.0], [-3.0, -3.0]])
    weights, right = newton(logits, torch.tensor([True, True, False, False]), lambda value: value)
    assert weights.isfinite().all()
    assert weights.max() < 20
    assert right == 2


def test_two_processes_find_what_one_does():
    torch.manual_seed(0)
    logits, hits = torch.randn(900, 2), torch.rand(900) < 0.4
    alone, _ = newton(logits, hits, lambda value: value)
    barrier, sent, found = threading.Barrier(2, timeout=30), {}, {}

    def process(rank):
        def total(value):
            sent[rank] = value.clone()
            barrier.wait()
            result = sent[0] + sent[1]
            barrier.wait()
            return result

        found[rank], _ = newton(logits[rank::2], hits[rank::2], total)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], alone, atol=1e-8)


def test_documents_without_a_right_candidate_cannot_be_fitted():
    space, _, scores = two_views(documents=20)
    with pytest.raises(UserError, match="no validation document has a label"):
        build(space).fit_weights(Context(scores, Targets.from_lists([[]] * 20)))


# --- as a head


def test_parts_are_measured_beside():
    space, _, scores = two_views(documents=20)
    head = build(space)
    found = head.rankings(wrap(scores), 5)
    assert list(found) == ["", "inner", "engine"]
    assert torch.equal(found[""].labels, head.rank(wrap(scores), 5).labels)
    assert torch.equal(found["engine"].labels, head.engine.rank(wrap(scores), 5).labels)


def test_loss_and_needs():
    space, targets, scores = two_views(documents=20)
    head = build(space, partial(Linear, layers=2), partial(Linear, layers=3))
    assert head.needs_layers == 3
    head = build(space, Linear)
    assert torch.equal(
        head.loss(wrap(scores), targets, "x")["loss"], head.inner.loss(wrap(scores), targets, "x")["loss"]
    )


def test_a_checkpoint_keeps_the_weights():
    space, targets, scores = two_views(documents=50)
    head, other = build(space), build(space)
    head.fit_weights(Context(scores, targets))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.rank(wrap(scores), 9).scores, head.rank(wrap(scores), 9).scores)


def test_weights_come_after_what_they_go_by():
    space, _, _ = two_views(documents=20)
    build(space).check_plan(["engine.fit", "fit_weights"])
    with pytest.raises(UserError, match="name it after their own transitions"):
        build(space).check_plan(["fit_weights", "engine.fit"])
