"""HTTN: each equation against a slow loop, the transfer on one and two processes, and labels that come later."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from heads import Linear, PrototypeTransfer
from heads.prototype_transfer import NEVER
from heads.transfer_map import (
    RIDGES,
    attend,
    by_document,
    cell_means,
    choose_ridge,
    draw_documents,
    entries,
    having,
    mean_logit,
    solve_adam,
    solve_ridge,
)

DIM = 7


def wrap(pooled):
    tokens = pooled.unsqueeze(1)
    return Features(tokens, torch.ones(len(pooled), 1).bool(), pooled, (tokens,))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Context:
    """A transition over given features; `share` (i, n) makes it process i of n, whose sums `others` adds."""

    def __init__(self, pooled, targets, seed=3, size=4, share=(0, 1), others=None, order=None):
        self.pooled, self.targets, self.seed, self.size = pooled, targets, seed, size
        self.share, self.others, self.logged, self.sums = share, others, {}, []
        self.order = torch.arange(len(pooled)) if order is None else order

    def train_targets(self):
        return self.targets

    def train_features(self):
        first, step = self.share
        for rows in self.order[first::step].split(self.size):
            dense = self.targets.dense(1000)[rows]
            targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in dense])
            mask = torch.ones(len(rows), 1).bool()
            yield wrap(self.pooled[rows]), Batch(torch.zeros(len(rows), 1).long(), mask, targets, rows)

    def sum(self, value):
        self.sums.append(value.clone())
        return value if self.others is None else value + self.others.pop(0)

    def log(self, values):
        self.logged.update(values)


def corpus(num_documents=60, counts=(30, 20, 12, 9, 3, 2, 1), seed=0, unseen=0):
    """Labels with so many documents each, not in the order of their counts in one case below."""
    generator = seeded(seed)
    lists = [[] for _ in range(num_documents)]
    for label, count in enumerate(counts):
        for row in torch.randperm(num_documents, generator=generator)[:count].tolist():
            lists[row].append(label)
    if unseen:
        lists[0].append(len(counts) + 1)
    space = LabelSpace([f"l{i}" for i in range(len(counts))], list(counts), num_documents, vocab_size=9)
    return space, Targets.from_lists(lists), torch.randn(num_documents, DIM, generator=generator)


def build(space, seed=0, **settings):
    torch.manual_seed(seed)
    return PrototypeTransfer(DIM, space, **{"hidden": 5, "draws": 6} | settings)


def transferred(space, targets, pooled, **settings):
    head = build(space, **settings)
    context = Context(pooled, targets)
    head.transfer(context)
    return head, context


def members_of(targets, label):
    return [i for i in range(len(targets)) if label in targets.indices[targets.indptr[i] : targets.indptr[i + 1]]]


# --- attention (Eq. 10)


def test_attention_on_two_head_labels():
    mixed, alpha = attend(torch.tensor([[1.0, 0.0]]), torch.eye(2), 1.0, 0.5)
    assert alpha[0].tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)
    assert mixed[0].tolist() == pytest.approx([0.865529, 0.134471], abs=1e-6)
    # not what comes out when the sum over 30 draws is divided by 45 labels
    assert mixed[0].tolist() != pytest.approx([0.743686, 0.089647], abs=1e-3)


def test_attention_equals_a_loop():
    few, heads = torch.randn(3, 4, generator=seeded()), torch.randn(5, 4, generator=seeded(1))
    mixed, alpha = attend(few, heads, 0.7, 0.3)
    assert torch.allclose(alpha.sum(1), torch.ones(3))
    for z in range(3):
        e = [math.exp(float(few[z] @ heads[j]) / 0.7) for j in range(5)]
        attended = sum(e[j] / sum(e) * heads[j] for j in range(5))
        assert torch.allclose(mixed[z], 0.7 * few[z] + 0.3 * attended, atol=1e-6)


def test_equal_head_prototypes_are_what_is_attended():
    one = F.normalize(torch.randn(1, 4, generator=seeded()), dim=1)
    mixed, _ = attend(torch.randn(3, 4, generator=seeded(1)), one.expand(6, 4), 1.0, 1.0)
    assert torch.allclose(mixed, one.expand(3, 4), atol=1e-6)


def test_cold_attention_takes_the_nearest_head_prototype():
    heads = F.normalize(torch.randn(6, 4, generator=seeded()), dim=1)
    few = F.normalize(torch.randn(3, 4, generator=seeded(1)), dim=1)
    mixed, _ = attend(few, heads, 1e-4, 1.0)
    assert torch.allclose(mixed, heads[(few @ heads.T).argmax(1)], atol=1e-4)


# --- the map (Eq. 7)


def exact(draws=4, labels=20, width=6):
    prototypes = torch.randn(draws, labels, width, generator=seeded(), dtype=torch.float64)
    truth = torch.randn(width, width, generator=seeded(1), dtype=torch.float64)
    prototypes[:] = prototypes[:1]  # one classifier for each label, so its prototype is the same in every draw
    return prototypes, prototypes[0] @ truth.T, truth


def test_ridge_finds_an_exact_map():
    prototypes, classifiers, truth = exact()
    found = solve_ridge(prototypes, classifiers, 1e-9)
    assert torch.allclose(found, truth, atol=1e-4)
    assert (classifiers - prototypes[0] @ found.T).square().sum() < 1e-8
    other = torch.randn(6, generator=seeded(2), dtype=torch.float64)
    assert torch.allclose(found @ other, truth @ other, atol=1e-4)


def test_ridge_equals_a_loop():
    prototypes = torch.randn(3, 4, 5, generator=seeded(), dtype=torch.float64)
    classifiers = torch.randn(4, 5, generator=seeded(1), dtype=torch.float64)
    cross, square = torch.zeros(5, 5).double(), 0.1 * 3 * 4 / 5 * torch.eye(5).double()
    for s in range(3):
        for j in range(4):
            cross += torch.outer(classifiers[j], prototypes[s, j])
            square += torch.outer(prototypes[s, j], prototypes[s, j])
    assert torch.allclose(solve_ridge(prototypes, classifiers, 0.1), cross @ square.inverse(), atol=1e-10)


def test_ridge_is_chosen_by_the_error_on_labels_left_out():
    prototypes = torch.randn(3, 11, 5, generator=seeded(), dtype=torch.float64)
    classifiers = torch.randn(11, 5, generator=seeded(1), dtype=torch.float64)
    errors = []
    for ridge in RIDGES:
        error = 0.0
        for fold in range(5):
            out = [j for j in range(11) if j % 5 == fold]
            kept = [j for j in range(11) if j % 5 != fold]
            found = solve_ridge(prototypes[:, kept], classifiers[kept], ridge)
            error += sum(
                float((classifiers[j] - found @ prototypes[s, j]).square().sum()) for s in range(3) for j in out
            )
        errors.append(error)
    assert choose_ridge(prototypes, classifiers) == RIDGES[errors.index(min(errors))]
    assert min(errors) < errors[0]


def test_ridge_is_weak_for_an_exact_map_and_strong_for_noise():
    prototypes, classifiers, _ = exact()
    assert choose_ridge(prototypes, classifiers) == RIDGES[0] == 1e-3
    noise = torch.randn(20, 6, generator=seeded(5), dtype=torch.float64)
    assert choose_ridge(prototypes, noise) == RIDGES[-1] == 1


@pytest.mark.parametrize("labels", [1, 2, 4])
def test_ridge_is_chosen_with_few_head_labels(labels):
    prototypes = torch.randn(3, labels, 5, generator=seeded(), dtype=torch.float64)
    classifiers = torch.randn(labels, 5, generator=seeded(1), dtype=torch.float64)
    assert choose_ridge(prototypes, classifiers) in (RIDGES if labels > 1 else RIDGES[:1])


def test_adam_comes_near_the_exact_map_and_a_loop():
    prototypes, classifiers, truth = exact()
    found = solve_adam(prototypes, classifiers, 0.01, 300, seeded())
    assert torch.allclose(found, truth, atol=0.02)
    assert torch.equal(found, solve_adam(prototypes, classifiers, 0.01, 300, seeded()))
    # by hand: no autograd, no optimizer class
    bound = 6**-0.5
    weight = torch.rand(6, 6, generator=seeded(), dtype=torch.float64) * 2 * bound - bound
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 9):
        error = prototypes[(step - 1) % 4] @ weight.T - classifiers
        gradient = 2 * error.T @ prototypes[(step - 1) % 4] / error.numel()
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        weight = weight - 0.01 * (first / (1 - 0.9**step)) / ((second / (1 - 0.99**step)).sqrt() + 1e-8)
    assert torch.allclose(solve_adam(prototypes, classifiers, 0.01, 2, seeded()), weight, atol=1e-9)


# --- drawing (Eq. 6 and 8)


def test_draws_are_documents_of_the_label_without_repeats():
    _, targets, _ = corpus(counts=(30, 20, 12, 9, 3, 2, 0))
    labels = torch.tensor([5, 0, 6, 3])
    documents, cells = draw_documents(targets, labels, 5, 8, seeded())
    for draw in range(8):
        for place, label in enumerate(labels.tolist()):
            drawn = documents[cells == draw * 4 + place].tolist()
            own = members_of(targets, label)
            assert len(drawn) == len(set(drawn)) == min(5, len(own))
            assert set(drawn) <= set(own)
    assert (cells < 32).all()


def test_draws_follow_the_seed_and_differ_from_each_other():
    _, targets, _ = corpus()
    labels = torch.arange(4)
    one, again, other = (draw_documents(targets, labels, 3, 2, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(*one[0].view(2, -1))


def test_every_document_is_drawn_equally_often():
    targets = Targets.from_lists([[0], [0], [0, 1], [0], [1]])
    documents, cells = draw_documents(targets, torch.tensor([0]), 2, 4000, seeded())
    assert len(documents) == len(cells) == 8000
    shares = documents.bincount(minlength=5) / 8000
    assert shares.tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0], abs=0.02)


def test_drawing_for_no_label_and_from_no_document():
    _, targets, _ = corpus()
    assert draw_documents(targets, torch.zeros(0).long(), 2, 3, seeded())[0].shape == (0,)
    nothing = Targets.from_lists([[], []])
    assert draw_documents(nothing, torch.arange(3), 2, 3, seeded())[0].shape == (0,)


def test_cells_of_documents_come_back_in_any_order():
    table = by_document(torch.tensor([2, 0, 2, 3]), torch.tensor([7, 5, 6, 5]), 5)
    position, cell = entries(table, torch.tensor([3, 1, 2]))
    assert sorted(zip(position.tolist(), cell.tolist(), strict=True)) == [(0, 5), (2, 6), (2, 7)]


def test_repeats_are_not_counted_in_means():
    part = (torch.tensor([0, 1]), torch.tensor([0, 0]), 2)
    batch = torch.tensor([[1.0], [3.0], [100.0]])
    (means,) = cell_means([part], [(batch, torch.tensor([0, 1, -1]))], 2, torch.zeros(1), lambda total: total)
    assert means.tolist() == [[2.0], [0.0]]


# --- the whole transfer


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
    head, _ = transferred(
        space, targets, pooled, attention=attention, bias=bias, normalize=normalize, shots=3, ridge=0.1
    )
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


def test_all_documents_of_a_label_make_its_prototype():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, shots=30, solver="identity", attention=False)
    assert torch.allclose(head.tail[0], F.normalize(head.prototypes[4:], dim=1), atol=1e-6)
    assert torch.allclose(head.tail.norm(dim=-1), torch.ones(1, 3))
    assert torch.equal(head.map, torch.eye(5))


def test_an_exact_relation_is_carried_over_to_the_tail():
    space, targets, pooled = corpus(counts=(30, 25, 20, 12, 10, 9, 8, 3, 2, 1))
    head = build(space, shots=60, ridge=1e-9, attention=False)
    truth = torch.randn(5, 5, generator=seeded(4))
    reference, _ = transferred(space, targets, pooled, shots=60, solver="identity", attention=False)
    prototypes = F.normalize(reference.prototypes, dim=1)
    head.head.data = prototypes[:7] @ truth.T
    context = Context(pooled, targets)
    head.transfer(context)
    assert torch.allclose(head.map, truth, atol=1e-4)
    assert torch.allclose(head.tail[0], prototypes[7:] @ truth.T, atol=1e-4)
    assert context.logged["transfer/map_error"] < 1e-8


@pytest.mark.parametrize("solver", ["ridge", "adam", "identity"])
def test_two_processes_get_what_one_gets(solver):
    space, targets, pooled = corpus()
    alone, context = transferred(space, targets, pooled, members=3, solver=solver, shots=2)
    order = torch.randperm(60, generator=seeded())
    second = Context(pooled, targets, size=7, share=(1, 2), order=order)
    build(space, members=3, solver=solver, shots=2).transfer(second)
    first = Context(pooled, targets, share=(0, 2), others=second.sums, order=order)
    together = build(space, members=3, solver=solver, shots=2)
    together.transfer(first)
    for name in ("prototypes", "map", "tail"):
        assert torch.allclose(getattr(alone, name), getattr(together, name), atol=1e-6), name
    assert first.logged == pytest.approx(context.logged, abs=1e-5)


def test_the_transfer_leaves_what_was_trained():
    space, targets, pooled = corpus()
    head = build(space)
    before = {name: p.clone() for name, p in head.named_parameters()}
    scores = head(wrap(pooled))
    head.transfer(Context(pooled, targets))
    for name, parameter in head.named_parameters():
        assert torch.equal(parameter, before[name]) == (name != "tail"), name
        assert parameter.requires_grad
    assert torch.equal(head(wrap(pooled))[:, :4], scores[:, :4])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    after = {name: p.clone() for name, p in head.named_parameters()}
    head.loss(wrap(pooled), targets, "tune")["loss"].backward()
    optimizer.step()
    assert all(not torch.equal(parameter, after[name]) for name, parameter in head.named_parameters())


def test_what_is_logged():
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


def test_a_label_without_documents_counts_as_an_average_label():
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


# --- scores and loss


def test_scale_multiplies_logits():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    assert head.scale.shape == ()
    logits, ranking = head(wrap(pooled)), head.rank(wrap(pooled), 7).labels
    head.scale.data *= 2
    assert torch.allclose(head(wrap(pooled)), 2 * logits, atol=1e-5)
    assert torch.equal(head.rank(wrap(pooled), 7).labels, ranking)


def test_one_document_scores_as_in_a_batch():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=2)
    together = head(wrap(pooled[:5]))
    for i in range(5):
        assert torch.allclose(head(wrap(pooled[i : i + 1])), together[i : i + 1], atol=1e-6)


def test_bias_begins_at_the_prior_of_head_labels():
    space, _, pooled = corpus()
    head = build(space, bias=True, scale=4.0)
    assert head.head.shape == (4, 6)
    assert torch.allclose(4 * head.head[:, -1], space.prior()[:4].logit(), atol=1e-6)
    assert (head.unit(wrap(pooled))[:, -1] == 1).all()


def test_before_the_transfer_only_head_labels_count():
    space, targets, pooled = corpus(counts=(2, 30, 1, 20, 12, 3, 9), unseen=1)
    head = build(space)
    logits = head(wrap(pooled))
    assert (logits[:, [0, 2, 5]] == NEVER).all()
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


def test_readiness_is_part_of_the_weights():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    other = build(space, seed=1)
    other.load_state_dict(head.state_dict())
    assert other.is_ready
    assert torch.equal(other(wrap(pooled)), head(wrap(pooled)))
    other.load_state_dict(build(space).state_dict())
    assert not other.is_ready
    assert (other(wrap(pooled))[:, 4:] == NEVER).all()
    outer = nn.ModuleDict({"head": build(space)})  # inside another module
    outer.load_state_dict({f"head.{name}": value for name, value in head.state_dict().items()})
    assert outer["head"].is_ready


def test_shapes_do_not_change_in_the_transfer():
    space, targets, pooled = corpus()
    shapes = {name: value.shape for name, value in build(space, members=2).state_dict().items()}
    head, _ = transferred(space, targets, pooled, members=2)
    assert {name: value.shape for name, value in head.state_dict().items()} == shapes
    assert shapes["tail"] == (2, 3, 5)


def test_parts_of_other_weights_leave_the_split_alone():
    space, targets, pooled = corpus()
    trained, _ = transferred(space, targets, pooled)
    head = build(space, tail_count=9)
    fitting = {k: v for k, v in trained.state_dict().items() if v.shape == head.state_dict()[k].shape}
    assert fitting.keys() == {"project.weight", "project.bias", "scale", "map", "prototypes", "ready"}
    head.load_state_dict(fitting, strict=False)
    assert head.is_head.tolist() == [True] * 3 + [False] * 4
    assert not head.is_ready
    assert not head.ready
    assert head(wrap(pooled)).shape == (60, 7)


# --- members


def test_members_average_probabilities():
    assert mean_logit(torch.tensor([[0.0], [4.0]])).sigmoid().item() == pytest.approx(0.741007, abs=1e-6)
    assert torch.tensor(2.0).sigmoid().item() == pytest.approx(0.880797, abs=1e-6)
    logits = torch.randn(5, 3, 4, generator=seeded()) * 3
    assert torch.allclose(mean_logit(logits).sigmoid(), logits.sigmoid().mean(0), atol=1e-6)


def test_mean_of_extreme_members_stays_finite_and_ordered():
    sure = mean_logit(torch.tensor([[60.0, -60.0, 50.0], [50.0, -50.0, 40.0]]))
    assert sure.isfinite().all()
    assert sure[0] > sure[2] > sure[1]
    # probability (e^-60 + e^-50) / 2
    assert sure[1].item() == pytest.approx(-50 - math.log(2) + math.log1p(math.exp(-10)), abs=1e-4)


def test_identical_members_are_one():
    space, targets, pooled = corpus()
    settings = {"shots": 30}  # all documents: every draw is the same
    one, _ = transferred(space, targets, pooled, **settings)
    three, _ = transferred(space, targets, pooled, members=3, **settings)
    assert torch.allclose(three.tail, one.tail.expand(3, -1, -1), atol=1e-6)
    assert torch.allclose(three(wrap(pooled)), one(wrap(pooled)), atol=1e-4)


def test_members_come_from_draws_of_their_own():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, members=6, shots=1)
    assert head.tail.shape == (6, 3, 5)
    assert not torch.allclose(head.tail[:, 0], head.tail[:1, 0].expand(6, -1))
    assert torch.equal(head.tail[:, 2], head.tail[:1, 2].expand(6, -1))  # it has but one document
    unit = head.unit(wrap(pooled))
    expected = torch.stack([(head.scale * unit @ member.T).sigmoid() for member in head.tail]).mean(0)
    assert torch.allclose(head(wrap(pooled))[:, 4:].sigmoid(), expected, atol=1e-6)


# --- documents of the stages


def test_documents_with_head_labels():
    space, _, _ = corpus()
    head = build(space)
    targets = Targets.from_lists([[0, 5], [4], [], [3], [9], [2, 9], [6]])
    assert head.head_documents(targets, 0).tolist() == [0, 3, 5]
    assert having(targets, ~head.is_head).tolist() == [True, True, False, False, False, False, True]


@pytest.mark.parametrize(("mix", "size"), [(0.0, 6), (0.5, 9), (1.0, 12), (100.0, 60)])
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


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shots": 0}, "shots=0 is too low: the lowest is 1"),
        ({"tail_count": 0}, "tail_count=0 is too low"),
        ({"tail_labels": 0}, "tail_labels=0 is too low"),
        ({"members": 0}, "members=0 is too low"),
        ({"ridge": 0.0}, "ridge=0.0 is too low"),
        ({"temperature": -1.0}, "temperature=-1.0 is too low"),
        ({"scale": float("nan")}, "scale=nan is too low"),
        ({"attention_weight": 1.5}, "the highest is 1"),
        ({"mix": -0.5}, "mix=-0.5 is too low: the lowest is 0"),
        ({"tail_labels": 7}, "all 7 labels are tail.*lower --model.head.tail_labels"),
        ({"tail_count": 30}, "all 7 labels are tail.*lower --model.head.tail_count"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        build(corpus()[0], **settings)
    assert "\n" not in str(error.value)


def test_a_corpus_without_tail_labels_says_what_to_raise():
    with pytest.raises(UserError, match=r"no label has 3 training documents or fewer: raise --model\.head\.tail_count"):
        build(corpus(counts=(30, 20, 9))[0])


def test_the_split_by_number_wins():
    space, _, _ = corpus()
    assert len(build(space).tail_labels) == 3
    assert len(build(space, tail_labels=5, tail_count=1).tail_labels) == 5


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_of_the_transfer_has_the_size_of_documents_times_labels():
    documents, labels = 2000, 300
    lists = [[row % labels, (7 * row + 1) % labels] for row in range(documents)]
    lists[:20] = [[labels + row] for row in range(20)]  # labels with one document
    targets = Targets.from_lists(lists)
    counts = targets.indices.bincount(minlength=labels + 20)
    space = LabelSpace([f"l{i}" for i in range(labels + 20)], counts.tolist(), documents, vocab_size=9)
    head = PrototypeTransfer(DIM, space, hidden=5, draws=4, members=2)

    class Sparse(Context):
        def train_features(self):
            for rows in torch.arange(documents).split(50):
                part = Targets.from_lists([lists[row] for row in rows])
                yield wrap(self.pooled[rows]), Batch(rows[:, None], rows[:, None] >= 0, part, rows)

    with Largest() as largest:
        head.transfer(Sparse(torch.randn(documents, DIM), targets))
    assert head.is_ready
    assert 0 < largest.numel < documents * labels / 10


# --- labels that come later


def grown(space, extra):
    """The label space after `extra` new labels with so many documents."""
    names = space.names + [f"new{len(space.names) + i}" for i in range(len(extra))]
    return LabelSpace(names, [*space.counts, *extra], space.num_documents, 9, added=space.added + len(extra))


def batches(pooled, lists, size=3):
    for rows in torch.arange(len(pooled)).split(size):
        yield wrap(pooled[rows]), Targets.from_lists([lists[i] for i in rows])


def state(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


@pytest.mark.parametrize("settings", [{}, {"members": 3, "shots": 2}, {"bias": True}, {"tail_labels": 3}])
def test_new_labels_leave_all_others_as_they_are(settings):
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


def test_a_new_label_is_made_as_the_transfer_makes_one():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    documents = torch.randn(4, DIM, generator=seeded(9))
    head.learn_labels(grown(space, [3]), batches(documents, [[7], [7], [], [7]]))
    unit = head.unit(wrap(documents[[0, 1, 3]]))
    heads = F.normalize(head.prototypes[:4], dim=1)
    assert torch.allclose(head.prototypes[7], unit.mean(0), atol=1e-6)
    mixed, _ = attend(F.normalize(unit.mean(0, keepdim=True), dim=1), heads, 1.0, 0.5)
    assert torch.allclose(head.tail[0, 3], head.map @ mixed[0], atol=1e-5)


def test_a_frozen_tail_stays_frozen():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled)
    head.tail.requires_grad = False
    head.learn_labels(grown(space, [1]), batches(pooled[:1], [[7]]))
    assert not head.tail.requires_grad


def test_a_new_label_comes_first_for_its_own_documents():
    space, targets, pooled = corpus()
    head, _ = transferred(space, targets, pooled, solver="identity", attention=False)
    head.head.data = F.normalize(head.prototypes[:4], dim=1)
    documents = torch.randn(1, DIM, generator=seeded(9)) + 0.05 * torch.randn(4, DIM, generator=seeded(10))
    head.learn_labels(grown(space, [4]), batches(documents, [[7]] * 4))
    assert head.rank(wrap(documents), 1).labels.flatten().tolist() == [7] * 4


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


def test_labels_are_learned_again_and_again():
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


def test_learning_is_the_same_twice_and_does_nothing_without_documents():
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


def test_learning_is_refused_with_a_reason():
    space, targets, pooled = corpus()
    with pytest.raises(UserError, match="only after its transfer: finish its training first"):
        build(space).learn_labels(grown(space, [1]), batches(pooled[:1], [[7]]))
    head, _ = transferred(space, targets, pooled)
    before = state(head)
    with pytest.raises(UserError, match="no document for the new label 'new8': give at least one"):
        head.learn_labels(grown(space, [1, 1]), batches(pooled[:1], [[7, 0]]))
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


# --- end to end: labels that share factors, a bag-of-words encoder, one document for many labels


FACTORS, WORDS, LENGTH = 12, 400, 60
COUNTS = [100] * 50 + [8] * 20 + [3] * 20 + [1] * 30  # half of the documents have a frequent label as well
GROUPS = [20 * 50, 20 * 20, 20 * 20, 20 * 30]  # of the test documents, 20 for each label


def factor_corpus(seed):
    """Word counts and labels of training documents, and of a balanced test set; a label is a mix of three factors."""
    generator = seeded(seed)
    factors = F.normalize(torch.rand(FACTORS, WORDS, generator=generator) ** 8, p=1, dim=1)  # each has few words
    weights = torch.rand(len(COUNTS), FACTORS, generator=generator)
    weights = weights * torch.zeros_like(weights).scatter(1, weights.topk(3, dim=1).indices, 1.0)
    words = 0.9 * F.normalize(weights, p=1, dim=1) @ factors + 0.1 / WORDS

    def documents(spread):
        drawn = spread.multinomial(LENGTH, replacement=True, generator=generator)
        return torch.zeros(len(spread), WORDS).scatter_add(1, drawn, torch.ones_like(drawn).float())

    label = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    other = torch.randint(50, label.shape, generator=generator)
    other = torch.where(torch.rand(label.shape, generator=generator) < 0.5, other, label)
    targets = Targets.from_lists(torch.stack([label, other], dim=1).tolist())
    test = torch.arange(len(COUNTS)).repeat_interleave(20)
    return documents((words[label] + words[other]) / 2), targets, documents(words[test]), test


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(WORDS, 64)

    def forward(self, counts):
        return wrap(torch.relu(self.hidden(F.normalize(counts.sqrt(), dim=1))))


def fit(encoder, head, words, targets, rows, epochs=8):
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    lists = [part.tolist() for part in targets.indices.split(targets.counts.tolist())]
    for _ in range(epochs):
        for chosen in rows[torch.randperm(len(rows))].split(64):
            optimizer.zero_grad()
            batch = Targets.from_lists([lists[i] for i in chosen])
            head.loss(encoder(words[chosen]), batch, "train")["loss"].backward()
            optimizer.step()


@torch.no_grad()
def recalls(encoder, head, words, label):
    """recall@5 of frequent labels, and of those with 8, 3 and 1 documents."""
    hit = (head.rank(encoder(words), 5).labels == label[:, None]).any(1).float()
    return [round(part.mean().item(), 3) for part in hit.split(GROUPS)]


def end_to_end(seed, **settings):
    """Recalls of the joint model, and of HTTN before and after the transfer."""
    words, targets, *test = factor_corpus(seed)
    counts = targets.indices.bincount(minlength=len(COUNTS)).tolist()
    space = LabelSpace([f"l{i}" for i in range(len(COUNTS))], counts, len(words), WORDS)
    torch.manual_seed(seed)
    joint, linear = BagOfWords(), Linear(64, space, hidden=32)
    fit(joint, linear, words, targets, torch.arange(len(words)))
    encoder, head = BagOfWords(), PrototypeTransfer(64, space, hidden=32, tail_count=8, **settings)
    fit(encoder, head, words, targets, head.head_documents(targets, 0))
    before = recalls(encoder, head, *test)
    head.transfer(Context(encoder(words).pooled.detach(), targets, size=500))
    return recalls(joint, linear, *test), before, recalls(encoder, head, *test)


def test_one_document_is_enough_for_labels_that_share_factors_with_frequent_ones():
    joint, before, after = end_to_end(0, attention=False)
    assert joint[3] < 0.05
    assert after[3] > 0.4
    assert after[2] > joint[2]
    assert after[0] > before[0] - 0.05
    assert before[1:] == [0, 0, 0]
