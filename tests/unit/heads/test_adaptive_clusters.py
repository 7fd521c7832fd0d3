"""AdaptiveClusters against its equations, one document and one label at a time."""

import math

import pytest
import torch
from torch import nn

from backbones.base import Features
from datamodules.batch import Targets
from heads import AdaptiveClusters
from heads.experts.adaptive_clusters import any_of, label_bounds, product_logit
from tests.support.documents import label_space, seeded, vector_features
from tests.support.errors import raises
from zoo.core.errors import UserError

COUNTS = [40, 30, 22, 15, 9, 5, 3, 2, 1]
SPACE = label_space(COUNTS, 60, unseen=["u"])
DIM, CUTOFFS = 8, (3, 6)  # clusters 0-2, 3-5, 6-8
TRUTH = [[0, 3, 5], [1], [2, 6, 9], [], [4, 7, 8], [9, 11]]  # from 9 on never seen in training


def features(size=6):
    return vector_features(torch.randn(size, DIM, generator=seeded()).requires_grad_())


def build(space=SPACE, cutoffs=CUTOFFS, **kwargs):
    """A head with large random weights."""
    torch.manual_seed(0)
    head = AdaptiveClusters(DIM, space, cutoffs, **kwargs)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return head


def with_logits(labels, cluster, tail):
    """A head of two clusters with constant logits."""
    size = len(labels) + len(tail)
    head = build(label_space([1] * size), [len(labels)])
    for layer, logits in ((head.first, [*labels, cluster]), (head.tails[0][-1], tail)):
        nn.init.zeros_(layer.weight)
        layer.bias.data = torch.tensor(logits)
    return head


def cluster_logits(head, vector):
    """Logits of each cluster's labels, and of the clusters after the first, for one document."""
    first = (vector @ head.first.weight.T + head.first.bias).tolist()
    labels = [first[: head.bounds[1]]]
    for inner, norm, _, last in head.tails:
        narrow = inner.weight @ vector + inner.bias
        narrow = (narrow - narrow.mean()) / (narrow.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias
        labels.append((last.weight @ narrow + last.bias).tolist())
    return labels, first[head.bounds[1] :]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def cross_entropy(logit, positive):
    return -math.log(sigmoid(logit) if positive else sigmoid(-logit))


def slow_loss(head, given, truth):
    """Sums of the head's and the tail's terms over documents, divided by all documents."""
    first = tail = 0.0
    for vector, positives in zip(given.pooled, truth, strict=True):
        labels, clusters = cluster_logits(head, vector)
        first += sum(cross_entropy(logit, label in positives) for label, logit in enumerate(labels[0]))
        for own, cluster, low in zip(labels[1:], clusters, head.bounds[1:], strict=False):
            chosen = any(low <= label < low + len(own) for label in positives)
            if not chosen:
                first += cross_entropy(cluster, False)
                continue
            for label, logit in enumerate(own, low):
                product = sigmoid(cluster) * sigmoid(logit)
                tail -= math.log(product if label in positives else 1 - product)
    return first / len(truth), tail / len(truth)


def slow_probabilities(head, given):
    rows = []
    for vector in given.pooled:
        labels, clusters = cluster_logits(head, vector)
        within = [sigmoid(c) * sigmoid(x) for own, c in zip(labels[1:], clusters, strict=True) for x in own]
        rows.append([sigmoid(x) for x in labels[0]] + within)
    return torch.tensor(rows)


def loss(head, given, truth):
    return head.loss(given, Targets.from_lists(truth), "train")


@pytest.mark.parametrize("cutoffs", [(3, 6), (4,), (1, 3, 8)])
def test_loss_equals_a_loop_over_documents_and_labels(cutoffs):
    head, given = build(cutoffs=cutoffs, shrink=1), features()
    terms, (first, tail) = loss(head, given, TRUTH), slow_loss(head, given, TRUTH)
    got = {name: term.item() for name, term in terms.items()}
    assert got == pytest.approx({"loss": first + tail, "head": first, "tail": tail}, rel=1e-5)


def test_documents_train_only_the_clusters_of_their_labels():
    head, given = build(), features()
    loss(head, given, TRUTH)["tail"].backward()
    trained = given.pooled.grad.abs().sum(1) > 0
    assert trained.tolist() == [True, False, True, False, True, False]


def test_unseen_labels_are_ignored():
    head, known = build(), [[label for label in labels if label < 9] for labels in TRUTH]
    assert loss(head, features(), TRUTH) == loss(head, features(), known)


@pytest.mark.parametrize("truth", [[[0], [1, 4]], [[0], [2]], [[], []], [[9], []]], ids=str)
def test_every_parameter_has_a_gradient(truth):
    head, given = build(hidden=12), features(2)
    terms = loss(head, given, truth)
    terms["loss"].backward()
    assert terms["loss"].isfinite()
    used = [any(low <= label < low + 3 for labels in truth for label in labels) for low in (3, 6)]
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        trained = used[int(name.split(".")[1])] if name.startswith("tails") else True
        assert parameter.grad.any() == trained, name
    assert (terms["tail"].item() > 0) == any(used)


def test_mixed_precision_is_near_single_precision():
    head, given = build(), features()
    expected = loss(head, given, TRUTH)["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = loss(head, given, TRUTH)["loss"]
        ranking = head.rank(given, 9)
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(expected.item(), rel=0.02)
    assert torch.equal(ranking.scores, head.rank(given, 9).scores)


@pytest.mark.parametrize("hidden", [None, 12])
def test_ranking_is_the_order_of_products_of_probabilities(hidden):
    head, given = build(hidden=hidden), features()
    read = given
    if hidden:
        vectors = torch.tanh(given.pooled @ head.project[0].weight.T + head.project[0].bias)
        read = Features(given.tokens, given.mask, vectors, given.layers)
    dense = slow_probabilities(head, read)
    for k in (1, 2, 5, 9):
        ranking, expected = head.rank(given, k), dense.sort(dim=1, descending=True, stable=True)
        assert torch.equal(ranking.labels, expected.indices[:, :k])
        assert torch.allclose(ranking.scores, expected.values[:, :k], rtol=1e-4)


def test_rankings_are_filled_with_minus_1():
    ranking = build().rank(features(), 12)
    assert ranking.labels.sort().values.tolist() == [[-1, -1, -1, *range(9)]] * 6
    assert torch.equal(ranking.labels[:, 9:], torch.full((6, 3), -1))
    assert torch.equal(ranking.scores[:, 9:], torch.zeros(6, 3))


@pytest.mark.parametrize(
    ("labels", "cluster", "tail", "order"),
    [
        ([50.0, 200.0], 300.0, [100.0, 250.0], [3, 1, 2, 0]),  # all round to probability 1
        ([-50.0, -200.0], -30.0, [-10.0, -190.0], [2, 0, 1, 3]),
        ([-200.0, -300.0], -100.0, [-50.0, 50.0], [3, 2, 0, 1]),
        ([5.0, -5.0], 0.5, [20.0, 30.0, 40.0, 30.0], [0, 4, 3, 5, 2, 1]),  # as sure as the cluster but for 1e-9
        ([0.0, 100.0], 100.0, [0.0, 1000.0], [1, 3, 0, 2]),  # equal: the lower label first
    ],
)
def test_saturated_logits_are_ranked_correctly(labels, cluster, tail, order):
    head = with_logits(labels, cluster, tail)
    for k in range(1, len(order) + 1):
        ranking = head.rank(features(2), k)
        assert ranking.labels.tolist() == [order[:k]] * 2
        assert ranking.scores.isfinite().all()


def test_logit_of_a_product():
    one, other = torch.linspace(-8, 8, 17).double(), torch.linspace(-9, 7, 15).double()[:, None]
    assert torch.allclose(product_logit(one, other), (one.sigmoid() * other.sigmoid()).logit(), rtol=1e-4)
    assert product_logit(torch.tensor([500.0, -500.0]), torch.tensor([400.0, -600.0])).tolist() == [400, -1100]


def test_later_clusters_are_narrower():
    head = AdaptiveClusters(DIM, SPACE, CUTOFFS)
    assert [tail[0].out_features for tail in head.tails] == [DIM // 2, DIM // 4]
    assert [tail[-1].out_features for tail in head.tails] == [3, 3]
    assert head.first.out_features == 3 + 2


def test_biases_start_at_the_prior():
    head, prior = AdaptiveClusters(DIM, SPACE, CUTOFFS), SPACE.prior()
    assert torch.allclose(head.first.bias[:3], prior[:3].logit())
    for i, tail in enumerate(head.tails):
        cluster = head.first.bias[3 + i].sigmoid()
        labels = prior[3 * (i + 1) : 3 * (i + 2)]
        assert cluster.item() == pytest.approx(1 - (1 - labels).prod().item(), rel=1e-5)
        assert torch.allclose(cluster * tail[-1].bias.sigmoid(), labels, rtol=1e-5)


def test_biases_are_finite_for_extreme_counts():
    for counts in ([9] * 9, [0] * 9):
        head = AdaptiveClusters(DIM, label_space(counts, 9), (3, 8))
        assert all(parameter.isfinite().all() for parameter in head.parameters())
    assert any_of(torch.full((3000,), 0.9)) == pytest.approx(0.99)
    assert any_of(torch.tensor([1e-9, 1e-9])).item() == pytest.approx(2e-9, rel=1e-4)


@pytest.mark.parametrize(
    ("cutoffs", "num_labels", "bounds"),
    [
        ((0.5,), 9, [0, 4, 9]),
        ((0.5,), 3956, [0, 1978, 3956]),
        ((0.07, 0.29), 100, [0, 7, 29, 100]),
        ((1, 0.5, 8.0), 9, [0, 1, 4, 8, 9]),
    ],
)
def test_cutoffs_are_fractions_or_label_numbers(cutoffs, num_labels, bounds):
    assert label_bounds(cutoffs, num_labels) == bounds


@pytest.mark.parametrize(
    "cutoffs",
    [[], *([wrong] for wrong in (0, -0.5, 2.5, math.nan, math.inf)), [6, 3], [0.4, 0.41], [0.1, 9], [3, 12]],
    ids=str,
)
def test_invalid_cutoffs_are_rejected(cutoffs):
    with raises(UserError, f"`cutoffs={cutoffs}`"):
        AdaptiveClusters(DIM, SPACE, cutoffs)


@pytest.mark.parametrize("wrong", [{"shrink": 0}, {"shrink": 3}, {"hidden": 0}, {"hidden": 4, "shrink": 2}], ids=str)
def test_invalid_widths_are_rejected(wrong):
    with raises(UserError, *(["shrink"] if "shrink" in wrong else ["hidden"])):
        AdaptiveClusters(DIM, SPACE, CUTOFFS, **wrong)


# --- training
