"""Labels that a trained HTTN head learns later, without training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.batch import LabelSpace, Targets
from heads import PrototypeTransfer
from heads.transfer.transfer_map import attend
from tests.support.errors import raises
from tests.support.httn import DIM, build, corpus, seeded, transferred, wrap
from zoo.core.errors import UserError


def grown(space, extra):
    """The label space with new labels of `extra` documents each."""
    names = space.names + [f"new{len(space.names) + i}" for i in range(len(extra))]
    return LabelSpace(names, [*space.counts, *extra], space.num_documents, 9, added=space.added + len(extra))


def batches(pooled, lists, size=3):
    for rows in torch.arange(len(pooled)).split(size):
        yield wrap(pooled[rows]), Targets.from_lists([lists[i] for i in rows])


def state(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


@pytest.mark.parametrize("settings", [{}, {"members": 3, "shots": 2}, {"bias": True}, {"tail_labels": 3}])
def test_new_labels_leave_other_labels_unchanged(settings):
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, **settings)
    before, scores = state(head), head(wrap(pooled))
    new_space = grown(space, [4, 1])
    documents = torch.randn(5, DIM, generator=seeded(9))
    head.learn_labels(new_space, batches(documents, [[7], [7, 8], [7], [7], []]))
    after = state(head)
    assert head.num_labels == 9
    assert torch.equal(after["tail"][:, :3], before["tail"])
    assert torch.equal(after["prototypes"][:7], before["prototypes"])
    assert all(torch.equal(after[name], before[name]) for name in ("head", "map", "project.weight", "scale"))
    assert torch.equal(head(wrap(pooled))[:, :7], scores)
    assert isinstance(head.tail, nn.Parameter)
    assert head.tail.requires_grad
    other = PrototypeTransfer(DIM, new_space, **{"hidden": 5, "draws": 6} | settings)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(wrap(pooled)), head(wrap(pooled)))


def test_new_classifiers_equal_those_of_the_transfer():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    documents = torch.randn(4, DIM, generator=seeded(9))
    head.learn_labels(grown(space, [3]), batches(documents, [[7], [7], [], [7]]))
    unit = head.unit(wrap(documents[[0, 1, 3]]))
    heads = F.normalize(head.prototypes[:4], dim=1)
    assert torch.allclose(head.prototypes[7], unit.mean(0), atol=1e-6)
    mixed, _ = attend(F.normalize(unit.mean(0, keepdim=True), dim=1), heads, 1.0, 0.5)
    assert torch.allclose(head.tail[0, 3], head.map @ mixed[0], atol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
def test_known_labels_move_with_their_prototypes(members):
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=members)
    before = state(head)
    documents = torch.randn(3, DIM, generator=seeded(9))
    head.learn_labels(grown(space, []), batches(documents, [[1, 5], [5], [1, 5]]))
    unit = head.unit(wrap(documents)).detach()
    old = before["prototypes"]
    heads = F.normalize(old[:4], dim=1)
    frequent = (20 * old[1] + unit[0] + unit[2]) / 22
    rare = (2 * old[5] + unit.sum(0)) / 5
    assert torch.allclose(head.prototypes[1], frequent, atol=1e-6)
    assert torch.allclose(head.prototypes[5], rare, atol=1e-6)
    change = head.map @ (F.normalize(frequent, dim=0) - heads[1])
    assert torch.allclose(head.head[1], before["head"][1] + change, atol=1e-5)
    pair = F.normalize(torch.stack([rare, old[5]]), dim=1)
    mixed, _ = attend(pair, heads, 1.0, 0.5)
    change = head.map @ (mixed[0] - mixed[1])
    assert torch.allclose(head.tail[:, 1], before["tail"][:, 1] + change, atol=1e-5)
    assert torch.equal(head.head[[0, 2, 3]], before["head"][[0, 2, 3]])
    assert torch.equal(head.tail[:, [0, 2]], before["tail"][:, [0, 2]])
    rest = [0, 2, 3, 4, 6]
    assert torch.equal(head.prototypes[rest], old[rest])


def test_labels_can_be_learned_repeatedly():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    documents = torch.randn(4, DIM, generator=seeded(9))
    second = grown(space, [2])
    head.learn_labels(second, batches(documents[:2], [[7], [7]]))
    before, scores = state(head), head(wrap(pooled))
    third = grown(second, [1, 1])
    head.learn_labels(third, batches(documents[2:], [[8, 7], [9]]))
    assert third.added == 3
    assert torch.equal(head.tail[:, :3], before["tail"][:, :3])
    assert torch.equal(head(wrap(pooled))[:, :7], scores[:, :7])
    unit = head.unit(wrap(documents))
    assert torch.allclose(head.prototypes[7], unit[:3].mean(0), atol=1e-6)
    assert not torch.equal(head.tail[:, 3], before["tail"][:, 3])
    other = build(third, seed=4)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(wrap(documents)), head(wrap(documents)))


def test_learning_is_deterministic():
    space, targets, pooled = corpus()
    documents = torch.randn(8, DIM, generator=seeded(9))
    heads = [transferred(space, targets, pooled, shots=2, members=2)[0] for _ in range(2)]
    before = state(heads[0])
    heads[0].learn_labels(space, iter([]))
    assert all(torch.equal(value, before[name]) for name, value in heads[0].state_dict().items())
    for head in heads:
        head.learn_labels(grown(space, [8]), batches(documents, [[7]] * 8))
    assert torch.equal(heads[0].tail, heads[1].tail)
    assert not torch.equal(heads[0].tail[0, 3], heads[0].tail[1, 3])


def test_learning_needs_the_transfer_and_documents():
    space, targets, pooled = corpus()
    with raises(UserError, "transfer"):
        build(space).learn_labels(grown(space, [1]), batches(pooled[:1], [[7]]))
    head, _ = transferred(space, targets, pooled)
    before = state(head)
    with raises(UserError, "'new8'"):
        head.learn_labels(grown(space, [1, 1]), batches(pooled[:1], [[7, 0]]))
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_documents_weigh_equally_in_one_call_and_in_several():
    space, targets, pooled = corpus()
    documents, lists = torch.randn(4, DIM, generator=seeded(9)), [[4], [4, 0], [4], [0]]
    together, _ = transferred(space, targets, pooled, attention=False)
    apart, _ = transferred(space, targets, pooled, attention=False)
    together.learn_labels(space, batches(documents, lists))
    for row in range(4):
        apart.learn_labels(space, batches(documents[row : row + 1], lists[row : row + 1]))
    assert torch.equal(together.support, apart.support)
    assert torch.allclose(together.prototypes, apart.prototypes, atol=1e-6)
    assert torch.allclose(together(wrap(pooled)), apart(wrap(pooled)), atol=1e-4)
