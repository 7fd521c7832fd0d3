"""LDGN against its equations, one document and one label at a time."""

import pytest
import torch

from datamodules.batch import Targets
from heads import LDGN, TransitionContext
from heads.attention import blockwise, ldgn
from heads.losses import bce
from tests.support.documents import label_space, token_features
from tests.support.errors import raises
from tests.support.tensors import LargestTensor
from zoo.core.errors import UserError

SPACE = label_space([9, 8, 3, 1, 1, 1], 20)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]
TRAIN = [[0, 1], [0, 1, 2], [0], [2, 3], [4]]  # label 5 has no documents


def features(noise=False):
    return token_features(LENGTHS, DIM, noise=noise)


def made(space=SPACE, **settings):
    torch.manual_seed(0)
    head = LDGN(DIM, space, hidden=5, **settings)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    head.count_labels(TransitionContext(targets=Targets.from_lists(TRAIN)))
    return head


def leaky(values):
    return torch.where(values > 0, values, 0.2 * values)


def share(i, j):
    """P(l_i | l_j) in the training documents, 1 for a label itself."""
    return 1.0 if i == j else sum(i in row and j in row for row in TRAIN) / max(sum(j in row for row in TRAIN), 1)


def convolved(edges, states, layer):
    """Each label's weighted mean over all labels, then the layer."""
    rows = [sum(edge * state for edge, state in zip(row, states, strict=True)) / sum(row) for row in edges]
    return [leaky(layer.weight @ row) for row in rows]


def slow(head, given):
    labels, rows = range(SPACE.num_labels), []
    static = [[torch.tensor(share(i, j)) for j in labels] for i in labels]
    for tokens, length in zip(given.tokens, LENGTHS, strict=True):
        x = tokens[:length]
        nodes = [torch.softmax(x @ query, dim=0) @ x for query in head.query]
        for layer in head.static:
            nodes = convolved(static, nodes, layer)
        first, second = ([layer.weight @ node for node in nodes] for layer in head.edges)
        graph = [[torch.sigmoid(a @ b) for b in second] for a in first]
        further = nodes
        for layer in head.dynamic:
            further = convolved(graph, further, layer)
        rows += [head.last(torch.cat(both)) for both in zip(nodes, further, strict=True)]
    return torch.stack(rows).view(len(LENGTHS), SPACE.num_labels)


def test_logits_and_loss_equal_the_equations():
    head, given, targets = made(), features(), Targets.from_lists(TRUTH)
    assert torch.allclose(head(given), slow(head, given), atol=1e-5)
    got, expected = head.loss(given, targets, "train")["loss"], bce(slow(head, given), targets)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    tensors = [given.tokens, *head.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, tensors) for loss in (got, expected)), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_padding_is_not_attended():
    head = made()
    assert torch.allclose(head(features(noise=True)), head(features()), atol=1e-5)


@pytest.mark.parametrize("limit", [5, 6], ids=["made again", "kept"])
def test_blocks_of_rows_do_not_change_the_logits(limit, monkeypatch):
    head = made()
    expected = head(features())
    monkeypatch.setattr(blockwise, "CHUNK", 4)
    monkeypatch.setattr(ldgn, "CHUNK", 4)
    monkeypatch.setattr(ldgn, "LIMIT", limit)
    monkeypatch.setitem(blockwise.BLOCK, "cpu", 1)
    with torch.no_grad():
        assert torch.allclose(head(features()), expected, atol=1e-6)


def test_a_sample_of_all_labels_has_the_loss_of_all_labels():
    given, targets = features(), Targets.from_lists(TRUTH)
    losses = [made(negatives=negatives).loss(given, targets, "train")["loss"] for negatives in (None, 100)]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)


def test_messages_of_sampled_labels_are_weighted():
    head, chosen, weight = made(), torch.tensor([0, 1, 3]), torch.tensor([1.0, 2.0, 3.0])
    places, weights = head.static_edges(chosen, weight)
    got = torch.zeros(3, 3).scatter_add(1, places, weights)
    expected = torch.tensor(
        [[share(i, j) * (1 if i == j else w) for j, w in zip((0, 1, 3), (1, 2, 3), strict=True)] for i in (0, 1, 3)]
    )
    assert torch.allclose(got, expected / expected.sum(1, keepdim=True))
    graph = ldgn.DynamicGraph(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), weight)  # all edges are 1/2
    assert torch.allclose(graph.mix(torch.eye(3).unsqueeze(0))[0, 1], torch.tensor([1.0, 1.0, 3.0]) / 5)


def test_training_on_a_sample_never_holds_a_graph_of_all_labels():
    space = label_space([2] * 1500, 20)
    head, targets = made(space, negatives=20), Targets.from_lists(TRUTH)
    with LargestTensor() as largest:
        head.loss(features(), targets, "train")["loss"].backward()
    assert largest.numel <= 1500 * 64  # the static graph; a dynamic one would have 2,250,000


def test_too_many_labels_for_a_whole_graph_are_refused():
    many = label_space([1] * (ldgn.LIMIT + 1), 20)
    with raises(UserError, "`negatives=None` keeps a graph of 4,097 x 4,097 labels"):
        LDGN(DIM, many)
    LDGN(DIM, many, negatives=5)


def test_the_static_graph_is_pending_until_labels_are_counted():
    head = LDGN(DIM, SPACE)
    assert head.pending == ("count_labels",)
    head.load_state_dict(LDGN(DIM, SPACE).state_dict())
    assert head.pending
    head.load_state_dict(made_default().state_dict())
    assert not head.pending


def made_default():
    head = LDGN(DIM, SPACE)
    head.count_labels(TransitionContext(targets=Targets.from_lists(TRAIN)))
    return head


def test_edges_that_all_vanish_are_normalized_too():
    queries = torch.full((1, 3, 1), -200.0, requires_grad=True)
    graph = ldgn.DynamicGraph(queries, torch.tensor([[[1.0], [1.0], [2.0]]]), None)
    mixed = graph.mix(torch.eye(3).unsqueeze(0))
    assert torch.allclose(mixed[0, 0], torch.tensor([0.5, 0.5, 0.0]))
    mixed[..., 0].sum().backward()
    assert queries.grad.isfinite().all()
