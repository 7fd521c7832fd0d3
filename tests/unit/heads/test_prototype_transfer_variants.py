"""Variants of HTTN that its tables and figures need: Joint with its classifier, members of EHTTN, unit classifiers."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.httn import build, corpus, seeded, transferred, transition, wrap


def test_without_tail_labels_it_is_the_joint_model():
    space, targets, pooled = corpus(unseen=1)
    head = build(space, tail_labels=0)
    assert head.pending == ()
    assert len(head.head_labels) == 7
    unit = F.normalize(pooled @ head.project.weight.T + head.project.bias, dim=1)
    logits = 10 * unit @ head.head.T
    assert torch.allclose(head(wrap(pooled)), logits, atol=1e-5)
    expected = F.binary_cross_entropy_with_logits(logits, targets.dense(7), reduction="none").sum(1).mean()
    loss = head.loss(wrap(pooled), targets, "any")["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert all(p.grad.any() for p in head.parameters() if p.requires_grad)
    assert [name for name, p in head.named_parameters() if not p.requires_grad] == ["tail"]
    assert head.weight_norms().shape == (7,)
    assert head.tail_documents(targets, 0).tolist() == list(range(60))  # the stages of HTTN remain valid


def test_the_transfer_of_no_labels_changes_nothing():
    space, targets, pooled = corpus()
    head = build(space, tail_labels=0)
    before = head(wrap(pooled))
    context = transition(pooled, targets)
    head.transfer(context)
    assert torch.equal(head(wrap(pooled)), before)
    assert context.logged.keys() == {f"transfer/{name}" for name in ("ridge", "map_error", "head_norm", "head_logit")}


def test_members_are_ranked_by_their_own_classifiers():
    space, targets, pooled = corpus()
    settings = {"members": 6, "shots": 1, "rank_members": True}
    assert build(space, **settings).rankings(wrap(pooled), 7).keys() == {""}  # before the transfer they do not exist
    head, _ = transferred(space, targets, pooled, **settings)
    found = head.rankings(wrap(pooled), 7)
    assert list(found) == ["", *(f"member0{i}" for i in range(1, 7))]
    unit = head.unit(wrap(pooled))
    for i in range(6):
        logits = head.scale * unit @ torch.cat([head.head, head.tail[i]]).T
        scores, labels = logits.sigmoid().sort(dim=1, descending=True)
        assert torch.equal(found[f"member0{i + 1}"].labels, labels)
        assert torch.allclose(found[f"member0{i + 1}"].scores, scores, atol=1e-6)
    assert torch.equal(found[""].labels, head.rank(wrap(pooled), 7).labels)
    assert not torch.equal(found["member01"].labels, found["member02"].labels)


@pytest.mark.parametrize("counts", [(30, 20, 12, 9, 3, 2, 1), (2, 30, 1, 20, 12, 3, 9)], ids=["sorted", "in-any-order"])
def test_equal_members_are_the_ensemble(counts):
    space, targets, pooled = corpus(counts=counts)
    head, _ = transferred(space, targets, pooled, members=3, shots=50)  # all draws are the same
    logits = head.member_logits(wrap(pooled))
    assert logits.shape == (3, 60, 7)
    assert torch.allclose(logits, head(wrap(pooled)).expand(3, -1, -1), atol=1e-4)


def test_individual_members_have_the_mean_of_their_losses():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=6, shots=1, objective="individual")
    losses = []
    for member in head.tail:
        alone = build(space)
        alone.load_state_dict(head.state_dict() | {"tail": member.unsqueeze(0)})
        losses.append(alone.loss(wrap(pooled), targets, "any")["loss"].item())
    loss = head.loss(wrap(pooled), targets, "any")["loss"]
    assert loss.item() == pytest.approx(sum(losses) / 6, rel=1e-5)
    together = build(space, members=6)
    together.load_state_dict(head.state_dict())
    assert together.loss(wrap(pooled), targets, "any")["loss"].item() < loss.item()  # Jensen's inequality


@pytest.mark.parametrize("bias", [False, True])
def test_imprinted_and_trained_classifiers_have_unit_length(bias):
    space, targets, pooled = corpus()
    settings = {"solver": "identity", "attention": False, "normalize_head": True, "bias": bias}
    head = build(space, **settings)
    with torch.no_grad():
        head.head.copy_(torch.randn(head.head.shape, generator=seeded()) * 5)
    head.transfer(transition(pooled, targets))
    assert torch.allclose(head.weight_norms(), head.scale.expand(7), atol=1e-5)
    unit = head.unit(wrap(pooled))
    logits = torch.stack([10 * unit[:, :5] @ (row[:5] / row[:5].norm()) for row in head.head], dim=1)
    logits = logits + 10 * head.head[:, 5] if bias else logits
    assert torch.allclose(head(wrap(pooled))[:, :4], logits, atol=1e-4)


def test_the_map_leads_to_unit_classifiers():
    space, targets, pooled = corpus()
    head = build(space, normalize_head=True, ridge=1e-9, hidden=3, shots=50)
    with torch.no_grad():  # classifiers in the direction of the prototypes, of any length
        means = (targets.dense(7) / targets.dense(7).sum(0)).T @ head.unit(wrap(pooled))
        head.head.copy_(means[:4] * torch.tensor([[0.1], [1.0], [10.0], [100.0]]))
    head.transfer(transition(pooled, targets))
    assert torch.allclose(head.map, torch.eye(3), atol=1e-4)


def test_new_documents_move_unit_classifiers_by_the_change_of_their_prototype():
    space, targets, pooled = corpus()
    moved = []
    for length in (1.0, 50.0):
        head = build(space, normalize_head=True)
        with torch.no_grad():
            head.head.mul_(length)
        head.transfer(transition(pooled, targets))
        head.learn_labels(space, [(wrap(pooled[:5]), targets.take(torch.arange(5)))])
        moved.append(head.head_weights())
    assert torch.allclose(*moved, atol=1e-5)
