"""OLTR: the memory on one and two processes, scores and losses against loops."""

import math

import pytest
import torch

from datamodules.batch import Targets
from heads import OLTR
from tests.support.errors import raises
from tests.support.httn import DIM, corpus, members_of, transition, wrap
from tests.support.transitions import Recorded
from zoo.core.errors import UserError

LABELS = 7


def build(space, seed=0, **settings):
    torch.manual_seed(seed)
    return OLTR(DIM, space, **{"hidden": 5} | settings)


def with_memory(space, targets, pooled, **settings):
    head = build(space, **settings)
    head.build_memory(transition(pooled, targets))
    return head


def vector(head, pooled):
    pairs = zip(head.project.weight.detach(), head.project.bias.detach(), strict=True)
    return [float(row @ pooled + shift) for row, shift in pairs]


def slow_logits(head, pooled):
    """Logits of a document, one label and coordinate at a time."""
    v, width = vector(head, pooled), head.project.out_features
    first = [sum(float(w[i]) * v[i] for i in range(width)) for w in head.hallucinator.weight]
    powers = [math.exp(x + float(b)) for x, b in zip(first, head.hallucinator.bias, strict=True)]
    memory = [sum(p * float(c[i]) for p, c in zip(powers, head.centroids, strict=True)) / sum(powers) for i in range(5)]
    chosen = [math.tanh(float(head.selector.weight[i] @ torch.tensor(v) + head.selector.bias[i])) for i in range(5)]
    near = min(math.dist(v, c.tolist()) for label, c in enumerate(head.centroids) if head.known[label])
    meta = [head.reach / near * (v[i] + chosen[i] * memory[i]) for i in range(5)]
    length = math.hypot(*meta)
    logits = []
    for w, b in zip(head.weight.tolist(), head.bias.tolist(), strict=True):
        cosine = sum(m * x for m, x in zip(meta, w, strict=True)) / length / math.hypot(*w)
        logits.append(head.scale * length / (1 + length) * cosine + b)
    return torch.tensor(logits)


@torch.no_grad()
def test_logits_equal_a_loop():
    space, targets, pooled = corpus()
    head = with_memory(space, targets, pooled, reach=0.7)
    head.known[2] = False  # as if no document had the label
    got = head(wrap(pooled[:9]))
    expected = torch.stack([slow_logits(head, document) for document in pooled[:9]])
    assert torch.allclose(got, expected, atol=1e-4)


@torch.no_grad()
def test_a_document_on_a_centroid_is_all_direction():
    space, targets, pooled = corpus()
    head = with_memory(space, targets, pooled)
    head.centroids[4] = head.project(pooled[0])
    head.selector.weight.zero_()
    head.selector.bias.zero_()
    cosine = torch.cosine_similarity(head.weight, head.project(pooled[0]), dim=1)
    assert torch.allclose(head(wrap(pooled[:1]))[0], head.scale * cosine + head.bias, atol=0.01)


@pytest.mark.parametrize("margin", [0.0, 10.0, 1000.0])
def test_the_loss_equals_a_loop(margin):
    space, targets, pooled = corpus(unseen=1)  # labels that training never saw are ignored
    head = with_memory(space, targets, pooled, margin=margin, centroid_weight=0.3)
    part = targets.take(torch.arange(12))
    with torch.no_grad():
        head.centroids.add_(torch.randn(LABELS, 5))
    terms = head.loss(wrap(pooled[:12]), part, "memory")
    near = far = 0.0
    for i in range(12):
        v, own = vector(head, pooled[i]), [label for label in range(LABELS) if i in members_of(targets, label)]
        squares = [math.dist(v, c.tolist()) ** 2 for c in head.centroids]
        near += sum(squares[label] for label in own) / 2 / 12
        far += sum(square for label, square in enumerate(squares) if label not in own) / 12 / LABELS
    centroids = near + 0.01 * max(0.0, margin - far)
    labels = head.criterion(head(wrap(pooled[:12])), part)
    assert terms["centroids"].item() == pytest.approx(centroids, rel=1e-4)
    assert torch.allclose(terms["labels"], labels)
    assert torch.allclose(terms["loss"], labels + 0.3 * terms["centroids"])


def test_centroids_are_mean_vectors_whatever_the_processes():
    space, targets, pooled = corpus(counts=(30, 20, 12, 9, 3, 2, 0))
    one = with_memory(space, targets, pooled)
    for label in range(LABELS):
        rows = members_of(targets, label)
        mean = one.project(pooled[rows]).mean(0) if rows else torch.zeros(5)
        assert torch.allclose(one.centroids[label], mean, atol=1e-6)
    assert one.known.tolist() == [True] * 6 + [False]
    parts = [Recorded(wrap(pooled), targets, share=(i, 2), batch_size=4) for i in range(2)]
    for part in parts:
        build(space).build_memory(part)
    both = build(space)
    both.build_memory(Recorded(wrap(pooled), targets, share=(0, 2), others=[parts[1].sums[0]], batch_size=4))
    assert torch.allclose(both.centroids, one.centroids, atol=1e-6)


def test_the_first_stage_trains_a_linear_classifier():
    space, targets, pooled = corpus()
    head = build(space)
    assert head.pending == ("build_memory",)
    expected = head.hallucinator(head.project(pooled))
    assert torch.allclose(head(wrap(pooled)), expected)
    terms = head.loss(wrap(pooled), targets, "representation")
    assert torch.allclose(terms["loss"], head.criterion(expected, targets))
    head.build_memory(transition(pooled, targets))
    assert head.pending == ()
    other = build(space, seed=1)
    other.load_state_dict(head.state_dict())
    assert other.pending == ()
    assert torch.equal(other(wrap(pooled)), head(wrap(pooled)))


def test_gradients_are_finite_on_a_centroid():
    space, targets, pooled = corpus()
    head = with_memory(space, targets, pooled)
    with torch.no_grad():
        head.centroids[3] = head.project(pooled[0])
    head.loss(wrap(pooled[:1]), Targets.from_lists([[3]]), "memory")["loss"].backward()
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_settings_are_checked():
    with raises(UserError, "reach=0"):
        build(corpus()[0], reach=0)
