"""Parts of the transfer: sampled prototypes, the map from prototypes to classifiers, attention over head labels.

Equation numbers are those of Xiao et al. 2021 (see `PrototypeTransfer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.batch import LabelSpace, Targets
from zoo.core.errors import UserError

RIDGES = (1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1, 10**-0.5, 1.0)


def head_mask(space: LabelSpace, tail_labels: int | None, tail_count: int) -> Tensor:
    """Mask of the head labels, at least one; see `PrototypeTransfer` for the settings."""
    mask = space.head_by_count(tail_count + 1) if tail_labels is None else space.head_by_tail_size(tail_labels)
    if not mask.any():
        option = f"tail_count={tail_count}" if tail_labels is None else f"tail_labels={tail_labels}"
        raise UserError(f"all {len(mask)} labels are tail, so there are no head labels: lower `{option}`")
    if mask.all() and tail_labels is None:
        reason = f"no label has {tail_count} training documents or fewer"
        raise UserError(f"{reason}: raise `tail_count`, or set `tail_labels=0` to train all labels together")
    return mask


def draw_documents(
    targets: Targets, labels: Tensor, shots: int, draws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample up to `shots` documents of each label without replacement, `draws` times (Eq. 6 and 8).

    Returns the sampled documents and the cell of each, which is draw * len(labels) + position in `labels`.
    """
    size = int(torch.cat([labels, targets.indices, labels.new_zeros(1)]).max()) + 1
    place = torch.full((size,), -1).index_copy(0, labels, torch.arange(len(labels)))[targets.indices]
    place, order = place.sort(stable=True)
    documents = targets.rows[order][place >= 0]
    place = place[place >= 0]  # ascending, so that the documents of a label are contiguous
    sizes = torch.bincount(place, minlength=len(labels))
    first = torch.arange(len(place)) - (sizes.cumsum(0) - sizes)[place] < shots
    sampled = []
    for _ in range(draws):
        shuffled = torch.randperm(len(place), generator=generator)
        sampled.append(documents[shuffled[place[shuffled].argsort(stable=True)][first]])
    cells = [draw * len(labels) + place[first] for draw in range(draws)]
    return torch.cat(sampled), torch.cat(cells)


def label_pairs(targets: Targets, num_labels: int) -> tuple[Tensor, Tensor, int]:
    """Document and label of each positive, as a part of `cell_means` with one cell per label."""
    known = targets.below(num_labels)
    return known.rows, known.indices, num_labels


def having(targets: Targets, labels: Tensor) -> Tensor:
    """Mask of the documents that have one of the labels in the mask `labels`."""
    wanted = F.pad(labels, (0, 1))[targets.indices.clamp_max(len(labels))]  # labels never seen do not count
    return torch.zeros(len(targets), dtype=torch.bool).index_fill(0, targets.rows[wanted], True)


def joined(parts: list[Targets]) -> Targets:
    """Concatenate the targets of several batches."""
    none = torch.zeros(0, dtype=torch.long)
    counts = torch.cat([none, *(part.counts for part in parts)])
    return Targets(F.pad(counts.cumsum(0), (1, 0)), torch.cat([none, *(part.indices for part in parts)]))


def by_document(documents: Tensor, cells: Tensor, num_documents: int) -> Targets:
    """The cells that each document belongs to, in CSR form."""
    indptr = F.pad(torch.bincount(documents, minlength=num_documents).cumsum(0), (1, 0))
    return Targets(indptr, cells[documents.argsort(stable=True)])


def cell_means(
    parts: list[tuple[Tensor, Tensor, int]],
    vectors: Iterable[tuple[Tensor, Tensor]],
    num_documents: int,
    zero: Tensor,
    reduce: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Mean vector of the documents in each cell (Eq. 6 and 8), in one pass; zeros for empty cells.

    Args:
        parts: (documents, cells, number of cells) each; the cells of a part are numbered from 0.
        vectors: (vectors, document numbers) of batches.
        num_documents: documents of the corpus.
        zero: a tensor with the width and device of the result.
        reduce: sum over all processes; in double precision, so that the order of documents hardly matters.
    """
    sizes = [size for _, _, size in parts]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    cells = torch.cat([cell + offset for (_, cell, _), offset in zip(parts, offsets, strict=True)])
    table = by_document(torch.cat([documents for documents, _, _ in parts]), cells, num_documents).to(zero.device)
    total = torch.zeros(sum(sizes), zero.shape[-1], dtype=torch.float64, device=zero.device)
    for batch, rows in vectors:
        counted = rows >= 0
        drawn = table.take(rows[counted])
        total.index_add_(0, drawn.indices, batch[counted].double()[drawn.rows])
    counts = torch.bincount(table.indices, minlength=len(total)).clamp_min(1)
    return list(torch.split(reduce(total) / counts[:, None], sizes))


def moments(prototypes: Tensor, classifiers: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of m p^T and sum of p p^T over draws and labels, from (draws, labels, d) and (labels, d)."""
    flat = prototypes.flatten(0, 1)
    return classifiers.T @ prototypes.sum(0), flat.T @ flat


def regress(cross: Tensor, square: Tensor, penalty: float) -> Tensor:
    """W = cross (square + penalty I)^-1."""
    eye = torch.eye(len(square), dtype=square.dtype, device=square.device)
    solution: Tensor = torch.linalg.solve(square + penalty * eye, cross.T)
    return solution.T.contiguous()


def unit_of_ridge(prototypes: Tensor) -> float:
    """Mean eigenvalue of sum p p^T for unit prototypes: the unit of ridge strengths."""
    return prototypes.shape[0] * prototypes.shape[1] / prototypes.shape[2]


def solve_ridge(prototypes: Tensor, classifiers: Tensor, ridge: float) -> Tensor:
    """Map W (d, d) that minimises the sum of |m - W p|^2 (Eq. 7) plus a ridge penalty, in closed form."""
    return regress(*moments(prototypes, classifiers), ridge * unit_of_ridge(prototypes))


def choose_ridge(prototypes: Tensor, classifiers: Tensor, folds: int = 5) -> float:
    """Choose the ridge strength by cross-validation over head labels."""
    folds = min(folds, len(classifiers))
    if folds < 2:
        return RIDGES[0]
    # Labels are sorted by frequency: interleaved folds all have frequent and rare ones.
    held = [moments(prototypes[:, fold::folds], classifiers[fold::folds]) for fold in range(folds)]
    cross, square = (torch.stack(part).sum(0) for part in zip(*held, strict=True))
    errors = []
    for ridge in RIDGES:
        error = 0.0
        for fold, (own_cross, own_square) in enumerate(held):
            unit = unit_of_ridge(prototypes) - unit_of_ridge(prototypes[:, fold::folds])
            mapped = regress(cross - own_cross, square - own_square, ridge * unit)
            # sum |m - W p|^2 without sum |m|^2, which is the same for all strengths
            error += float(((mapped @ own_square) * mapped).sum() - 2 * (mapped * own_cross).sum())
        errors.append(error)
    return RIDGES[errors.index(min(errors))]


def solve_adam(prototypes: Tensor, classifiers: Tensor, lr: float, epochs: int, generator: torch.Generator) -> Tensor:
    """Solve Eq. 7 as the official code does: a few epochs of Adam on the mean squared error, with a step per draw."""
    width = prototypes.shape[2]
    bound = 1 / math.sqrt(width)  # as in nn.Linear
    start = torch.rand(width, width, generator=generator, dtype=torch.float64) * 2 * bound - bound
    weight = start.to(prototypes.device).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=lr, betas=(0.9, 0.99))
    with torch.enable_grad():
        for _ in range(epochs):
            for drawn in prototypes:
                optimizer.zero_grad()
                torch.autograd.backward(F.mse_loss(drawn @ weight.T, classifiers))
                optimizer.step()
    return weight.detach()


def attend(tail: Tensor, heads: Tensor, temperature: float, weight: float) -> tuple[Tensor, Tensor]:
    """Mix similar head prototypes (l, d) into tail prototypes (z, d) (Eq. 10); also returns the attention (z, l).

    The softmax is over head labels: the paper's denominator has a typo in its index.
    """
    alpha = (tail @ heads.T / temperature).softmax(-1)
    return (1 - weight) * tail + weight * alpha @ heads, alpha


def unit_length(vectors: Tensor, width: int) -> Tensor:
    """Scale the first `width` coordinates of vectors (..., d') to unit length; a constant coordinate stays."""
    return torch.cat([F.normalize(vectors[..., :width], dim=-1), vectors[..., width:]], dim=-1)
