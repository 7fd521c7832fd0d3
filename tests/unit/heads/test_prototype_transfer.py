"""HTTN: the transfer on one and two processes, scores, loss, members and documents."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.batch import Targets
from heads import PrototypeTransfer
from heads.tail.platt import mean_of_sigmoids
from heads.transfer.prototype_transfer import UNTRAINED
from heads.transfer.transfer_map import RIDGES, draw_documents, having, solve_ridge
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.httn import DIM, build, corpus, members_of, seeded, transferred, transition, wrap
from tests.support.tensors import LargestTensor
from zoo.core.errors import UserError


@pytest.mark.parametrize("bias", [False, True])
def test_prototypes_are_means_of_unit_vectors(bias):
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, bias=bias)
    unit = F.normalize(pooled @ head.project.weight.T + head.project.bias, dim=1).detach()
    dense = targets.dense(7)
    expected = (dense / dense.sum(0)).T @ unit
    assert head.prototypes.shape == (7, 5 + bias)
    assert torch.allclose(head.prototypes[:, :5], expected, atol=1e-6)
    assert (head.prototypes[:, 5:] == 1).all()


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_tail_classifiers_equal_a_loop(attention, bias, normalize):
    space, targets, pooled = corpus()
    settings = {"attention": attention, "bias": bias, "normalize": normalize}
    head, _ = transferred(space, targets, pooled, shots=3, ridge=0.1, **settings)
    vectors = (pooled @ head.project.weight.T + head.project.bias).detach().double()
    if normalize:
        vectors = vectors / vectors.norm(dim=1, keepdim=True)

    def prototype(rows):
        mean = sum(vectors[i] for i in rows) / len(rows)
        mean = mean / mean.norm() if normalize else mean
        return torch.cat([mean, torch.ones(1)]) if bias else mean

    generator = seeded(3)
    documents, cells = draw_documents(targets, torch.arange(4), 3, 6, generator)
    sampled = torch.stack([prototype(documents[cells == cell].tolist()) for cell in range(24)]).view(6, 4, -1)
    mapped = solve_ridge(sampled, head.head.double().detach(), 0.1)
    assert torch.allclose(head.map.double(), mapped, atol=1e-5)
    documents, cells = draw_documents(targets, torch.arange(4, 7), 3, 1, generator)
    heads = [prototype(members_of(targets, j)) for j in range(4)]
    for z in range(3):
        new = prototype(documents[cells == z].tolist())
        if attention:
            e = [math.exp(float(new[:5] @ heads[j][:5])) for j in range(4)]
            new = (new + sum(e[j] / sum(e) * heads[j] for j in range(4))) / 2
        assert torch.allclose(head.tail[0, z].double(), mapped @ new, atol=1e-5)


@pytest.mark.parametrize("solver", ["ridge", "adam", "identity"])
def test_two_processes_give_the_same_transfer(solver):
    space, targets, pooled = corpus()
    alone, context = transferred(space, targets, pooled, members=3, solver=solver, shots=2)
    order = torch.randperm(60, generator=seeded())
    second = transition(pooled, targets, batch_size=7, share=(1, 2), order=order)
    build(space, members=3, solver=solver, shots=2).transfer(second)
    first = transition(pooled, targets, share=(0, 2), others=second.sums, order=order)
    together = build(space, members=3, solver=solver, shots=2)
    together.transfer(first)
    for name in ("prototypes", "map", "tail"):
        assert torch.allclose(getattr(alone, name), getattr(together, name), atol=1e-6), name
    assert first.logged == pytest.approx(context.logged, abs=1e-5)


def test_the_transfer_changes_tail_classifiers_only():
    space, targets, pooled = corpus()
    head = build(space)
    before = {name: p.clone() for name, p in head.named_parameters()}
    scores = head(wrap(pooled))
    head.transfer(transition(pooled, targets))
    for name, parameter in head.named_parameters():
        assert torch.equal(parameter, before[name]) == (name != "tail"), name
        assert parameter.requires_grad
    assert torch.equal(head(wrap(pooled))[:, :4], scores[:, :4])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    after = {name: p.clone() for name, p in head.named_parameters()}
    head.loss(wrap(pooled), targets, "tune")["loss"].backward()
    optimizer.step()
    assert all(not torch.equal(parameter, after[name]) for name, parameter in head.named_parameters())


def test_logged_values():
    space, targets, pooled = corpus()
    head, context = transferred(space, targets, pooled)
    names = {"attention_entropy", "ridge", "map_error", "head_norm", "tail_norm", "head_logit", "tail_logit"}
    assert context.logged.keys() == {f"transfer/{name}" for name in names}
    assert 0 < context.logged["transfer/attention_entropy"] <= math.log(4)
    assert context.logged["transfer/ridge"] in RIDGES
    logits = head(wrap(pooled))
    assert context.logged["transfer/head_logit"] == pytest.approx(logits[:, :4].mean().item(), abs=1e-5)
    assert context.logged["transfer/tail_logit"] == pytest.approx(logits[:, 4:].mean().item(), abs=1e-5)
    _, plain = transferred(space, targets, pooled, solver="adam", attention=False)
    assert not plain.logged.keys() & {"transfer/attention_entropy", "transfer/ridge"}


def test_labels_without_documents_are_average_labels():
    space, targets, pooled = corpus(counts=(30, 20, 12, 9, 3, 2, 0), unseen=1)
    head, _ = transferred(space, targets, pooled)
    assert not head.prototypes[6].any()
    heads = F.normalize(head.prototypes[:4], dim=1)
    assert torch.allclose(head.tail[0, 2], head.map @ heads.mean(0), atol=1e-5)
    assert head(wrap(pooled)).isfinite().all()


def test_labels_in_any_order_keep_their_columns():
    counts = (2, 30, 1, 20, 12, 3, 9)
    space, targets, pooled = corpus(counts=counts)
    head, _ = transferred(space, targets, pooled, tail_labels=3)
    assert head.head_labels.tolist() == [1, 3, 4, 6]
    assert head.tail_labels.tolist() == [0, 2, 5]
    unit = head.unit(wrap(pooled))
    logits = head(wrap(pooled))
    for place, label in enumerate([1, 3, 4, 6]):
        assert torch.allclose(logits[:, label], head.scale * unit @ head.head[place], atol=1e-5)
    for place, label in enumerate([0, 2, 5]):
        assert torch.allclose(logits[:, label], head.scale * unit @ head.tail[0, place], atol=1e-5)


def test_bias_starts_at_the_prior():
    space, _, pooled = corpus()
    head = build(space, bias=True, scale=4.0)
    assert head.head.shape == (4, 6)
    assert torch.allclose(4 * head.head[:, -1], space.prior()[:4].logit(), atol=1e-6)
    assert (head.unit(wrap(pooled))[:, -1] == 1).all()


def test_before_the_transfer_only_head_labels_count():
    space, targets, pooled = corpus(counts=(2, 30, 1, 20, 12, 3, 9), unseen=1)
    head = build(space)
    logits = head(wrap(pooled))
    assert (logits[:, [0, 2, 5]] == UNTRAINED).all()
    inner = logits[:, [1, 3, 4, 6]]
    dense = targets.dense(7)[:, [1, 3, 4, 6]]
    expected = F.binary_cross_entropy_with_logits(inner, dense, reduction="none").sum(1).mean()
    loss = head.loss(wrap(pooled), targets, "any name")["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert head.tail.grad is None
    assert head.head.grad.any()


def test_after_the_transfer_all_labels_count():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=2)
    expected = F.binary_cross_entropy_with_logits(head(wrap(pooled)), targets.dense(7), reduction="none").sum(1).mean()
    loss = head.loss(wrap(pooled), targets, "any name")["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_readiness_is_saved():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    other = build(space, seed=1)
    other.load_state_dict(head.state_dict())
    assert other.is_ready
    assert torch.equal(other(wrap(pooled)), head(wrap(pooled)))
    other.load_state_dict(build(space).state_dict())
    assert not other.is_ready
    assert (other(wrap(pooled))[:, 4:] == UNTRAINED).all()
    outer = nn.ModuleDict({"head": build(space)})  # inside another module
    outer.load_state_dict({f"head.{name}": value for name, value in head.state_dict().items()})
    assert outer["head"].is_ready


def test_a_partial_state_keeps_the_split():
    space, targets, pooled = corpus()
    trained, _ = transferred(space, targets, pooled)
    head = build(space, tail_count=9)
    fitting = {k: v for k, v in trained.state_dict().items() if v.shape == head.state_dict()[k].shape}
    assert fitting.keys() == {"project.weight", "project.bias", "scale", "map", "prototypes", "support", "ready"}
    head.load_state_dict(fitting, strict=False)
    assert head.is_head.tolist() == [True] * 3 + [False] * 4
    assert not head.is_ready
    assert not head.ready
    assert head(wrap(pooled)).shape == (60, 7)


def test_members_average_probabilities():
    assert mean_of_sigmoids(torch.tensor([[0.0], [4.0]])).sigmoid().item() == pytest.approx(0.741007, abs=1e-6)
    logits = torch.randn(5, 3, 4, generator=seeded()) * 3
    assert torch.allclose(mean_of_sigmoids(logits).sigmoid(), logits.sigmoid().mean(0), atol=1e-6)


def test_mean_of_extreme_members_is_finite_and_ordered():
    sure = mean_of_sigmoids(torch.tensor([[60.0, -60.0, 50.0], [50.0, -50.0, 40.0]]))
    assert sure.isfinite().all()
    assert sure[0] > sure[2] > sure[1]
    # probability (e^-60 + e^-50) / 2
    assert sure[1].item() == pytest.approx(-50 - math.log(2) + math.log1p(math.exp(-10)), abs=1e-4)


def test_members_have_their_own_draws():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=6, shots=1)
    assert head.tail.shape == (6, 3, 5)
    assert not torch.allclose(head.tail[:, 0], head.tail[:1, 0].expand(6, -1))
    assert torch.equal(head.tail[:, 2], head.tail[:1, 2].expand(6, -1))  # it has but one document
    unit = head.unit(wrap(pooled))
    expected = torch.stack([(head.scale * unit @ member.T).sigmoid() for member in head.tail]).mean(0)
    assert torch.allclose(head(wrap(pooled))[:, 4:].sigmoid(), expected, atol=1e-6)


def test_documents_with_head_labels():
    space, _, _ = corpus()
    head = build(space)
    targets = Targets.from_lists([[0, 5], [4], [], [3], [9], [2, 9], [6]])
    assert head.head_documents(targets, 0).tolist() == [0, 3, 5]
    assert having(targets, ~head.is_head).tolist() == [True, True, False, False, False, False, True]


@pytest.mark.parametrize(("mix", "size"), [(0.0, 6), (0.5, 9), (100.0, 60)])
def test_documents_with_tail_labels_and_others(mix, size):
    space, targets, _ = corpus(counts=(30, 20, 12, 9, 6))
    head = build(space, tail_labels=1, mix=mix)
    rows = head.tail_documents(targets, 5)
    assert rows.dtype == torch.long
    assert len(rows) == size
    assert (rows.diff() > 0).all()
    assert set(members_of(targets, 4)) <= set(rows.tolist())
    assert torch.equal(rows, head.tail_documents(targets, 5))
    if 0 < mix < 100:
        assert not torch.equal(rows, head.tail_documents(targets, 6))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"shots": 0}, ["`shots=0`"]),
        ({"tail_count": 0}, ["`tail_count=0`"]),
        ({"tail_labels": -1}, ["`tail_labels=-1`"]),
        ({"members": 0}, ["`members=0`"]),
        ({"ridge": 0.0}, ["`ridge=0.0`"]),
        ({"temperature": -1.0}, ["`temperature=-1.0`"]),
        ({"scale": float("nan")}, ["`scale=nan`"]),
        ({"attention_weight": 1.5}, ["`attention_weight=1.5`"]),
        ({"mix": -0.5}, ["`mix=-0.5`"]),
        ({"tail_labels": 7}, [7, "`tail_labels=7`"]),
        ({"tail_count": 30}, [7, "`tail_count=30`"]),
    ],
)
def test_invalid_settings_are_rejected(settings, names):
    with raises(UserError, *names):
        build(corpus()[0], **settings)


def test_a_corpus_without_tail_labels_is_rejected():
    with raises(UserError, 3, "`tail_count`"):
        build(corpus(counts=(30, 20, 9))[0])


def test_tail_labels_overrides_tail_count():
    space, _, _ = corpus()
    assert len(build(space).tail_labels) == 3
    assert len(build(space, tail_labels=5, tail_count=1).tail_labels) == 5


def test_no_tensor_has_documents_times_labels_elements():
    documents, labels = 2000, 300
    lists = [[row % labels, (7 * row + 1) % labels] for row in range(documents)]
    lists[:20] = [[labels + row] for row in range(20)]  # labels with one document
    targets = Targets.from_lists(lists)
    counts = targets.indices.bincount(minlength=labels + 20)
    space = label_space(counts.tolist(), documents)
    head = PrototypeTransfer(DIM, space, hidden=5, draws=4, members=2)

    with LargestTensor() as largest:
        head.transfer(transition(torch.randn(documents, DIM), targets, batch_size=50))
    assert head.is_ready
    assert 0 < largest.numel < documents * labels / 10
