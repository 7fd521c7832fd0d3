"""The steps of HTTN's transfer: each equation against a slow loop or known numbers."""

import math

import pytest
import torch

from datamodules.batch import Targets
from heads.transfer.transfer_map import (
    RIDGES,
    attend,
    by_document,
    cell_means,
    choose_ridge,
    draw_documents,
    solve_adam,
    solve_ridge,
)
from tests.support.httn import corpus, members_of, seeded


def test_attention_by_hand():
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


def exact(draws=4, labels=20, width=6):
    prototypes = torch.randn(draws, labels, width, generator=seeded(), dtype=torch.float64)
    truth = torch.randn(width, width, generator=seeded(1), dtype=torch.float64)
    prototypes[:] = prototypes[:1]  # one classifier for each label, so its prototype is the same in every draw
    return prototypes, prototypes[0] @ truth.T, truth


def test_ridge_equals_a_loop():
    prototypes = torch.randn(3, 4, 5, generator=seeded(), dtype=torch.float64)
    classifiers = torch.randn(4, 5, generator=seeded(1), dtype=torch.float64)
    cross, square = torch.zeros(5, 5).double(), 0.1 * 3 * 4 / 5 * torch.eye(5).double()
    for s in range(3):
        for j in range(4):
            cross += torch.outer(classifiers[j], prototypes[s, j])
            square += torch.outer(prototypes[s, j], prototypes[s, j])
    assert torch.allclose(solve_ridge(prototypes, classifiers, 0.1), cross @ square.inverse(), atol=1e-10)


def test_ridge_minimises_the_error_on_labels_left_out():
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


@pytest.mark.parametrize("labels", [1, 2, 4])
def test_ridge_with_few_head_labels(labels):
    prototypes = torch.randn(3, labels, 5, generator=seeded(), dtype=torch.float64)
    classifiers = torch.randn(labels, 5, generator=seeded(1), dtype=torch.float64)
    assert choose_ridge(prototypes, classifiers) in (RIDGES if labels > 1 else RIDGES[:1])


def test_adam_equals_a_loop_and_approaches_the_exact_map():
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


def test_draws_follow_the_seed():
    _, targets, _ = corpus()
    labels = torch.arange(4)
    one, again, other = (draw_documents(targets, labels, 3, 2, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(*one[0].view(2, -1))


def test_documents_are_drawn_uniformly():
    targets = Targets.from_lists([[0], [0], [0, 1], [0], [1]])
    documents, cells = draw_documents(targets, torch.tensor([0]), 2, 4000, seeded())
    assert len(documents) == len(cells) == 8000
    shares = documents.bincount(minlength=5) / 8000
    assert shares.tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0], abs=0.02)


def test_draws_without_labels_or_documents():
    _, targets, _ = corpus()
    assert draw_documents(targets, torch.zeros(0).long(), 2, 3, seeded())[0].shape == (0,)
    nothing = Targets.from_lists([[], []])
    assert draw_documents(nothing, torch.arange(3), 2, 3, seeded())[0].shape == (0,)


def test_cells_by_document():
    table = by_document(torch.tensor([2, 0, 2, 3]), torch.tensor([7, 5, 6, 5]), 5)
    taken = table.take(torch.tensor([3, 1, 2]))
    position, cell = taken.rows, taken.indices
    assert sorted(zip(position.tolist(), cell.tolist(), strict=True)) == [(0, 5), (2, 6), (2, 7)]


def test_repeats_are_left_out_of_means():
    part = (torch.tensor([0, 1]), torch.tensor([0, 0]), 2)
    batch = torch.tensor([[1.0], [3.0], [100.0]])
    (means,) = cell_means([part], [(batch, torch.tensor([0, 1, -1]))], 2, torch.zeros(1), lambda total: total)
    assert means.tolist() == [[2.0], [0.0]]
