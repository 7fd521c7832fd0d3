"""Sparse matrices of a fitted model: lookups, nearest rows, and their form in a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from heads.base import Ranking, top_labels
from zoo.core.cores import in_threads
from zoo.core.errors import UserError, first_line
from zoo.core.ragged import Lists

DENSE = 2**22  # largest number of cosines in a block of documents
ROWS = 64  # documents per block: small, so that a batch has blocks for all cores


def values_at(matrix: csr_array, rows: np.ndarray, columns: np.ndarray) -> NDArray[np.float32]:
    """Values at positions that broadcast against each other, 0 where nothing is stored.

    Indices of the matrix must be sorted and unique.
    """
    width = matrix.shape[1]
    if matrix.nnz > rows.size:  # many rows: those that are asked for are enough
        wanted, place = np.unique(rows, return_inverse=True)
        matrix, rows = matrix[wanted], place.reshape(rows.shape)
    stored = np.arange(matrix.shape[0]).repeat(np.diff(matrix.indptr)) * width + matrix.indices  # ascending
    if not len(stored):
        return np.zeros(np.broadcast_shapes(rows.shape, columns.shape), np.float32)
    wanted = rows.astype(np.int64) * width + columns
    at = np.searchsorted(stored, wanted).clip(max=len(stored) - 1)
    return np.where(stored[at] == wanted, matrix.data[at], 0).astype(np.float32)


def nearest(queries: csr_array, index: csr_array, k: int) -> Ranking:
    """The k rows with the largest dot product with each query, the first of ties; -1 where it is 0.

    `index` is the transposed matrix, (width, rows).
    """
    size = max(1, min(ROWS, DENSE // max(index.shape[1], 1)))
    blocks = [queries[start : start + size] for start in range(0, max(queries.shape[0], 1), size)]

    def best(block: csr_array) -> Ranking:
        return top_labels(torch.from_numpy((block @ index).toarray()), k)

    tops = in_threads(best, blocks)
    scores, rows = (torch.cat(part) for part in zip(*((top.scores, top.labels) for top in tops), strict=True))
    return Ranking(scores, rows.masked_fill(scores <= 0, -1))


def votes(neighbours: Ranking, power: float, documents: int) -> csr_array:
    """Weights cos^power of the neighbours of each query, which sum to 1, (queries, documents)."""
    weights = neighbours.scores.double() ** power * (neighbours.labels >= 0)
    shares = (weights / weights.sum(1, keepdim=True).clamp_min(1e-12)).float().numpy()
    starts = np.arange(0, shares.size + 1, shares.shape[1])
    matrix = csr_array((shares.ravel(), neighbours.labels.clamp_min(0).numpy().ravel(), starts))
    matrix.resize(len(shares), documents)
    matrix.sum_duplicates()  # several missing neighbours have the place of the first document
    return matrix


def widened(matrix: csr_array, columns: int, rows: int | None = None) -> csr_array:
    """The matrix with empty columns, and rows, at the end."""
    height = matrix.shape[0] if rows is None else rows
    starts = np.append(matrix.indptr, np.full(height - matrix.shape[0], matrix.indptr[-1], matrix.indptr.dtype))
    return csr_array((matrix.data, matrix.indices, starts), (height, columns))


def with_labels(found: Ranking, has_label: csr_array, labels: np.ndarray, count: int) -> tuple[Tensor, Tensor]:
    """Rows and cosines of the first `count` neighbors that have each label, (docs, labels, count), padded with -1.

    Args:
        found: nearest rows of each document.
        has_label: labels of the rows, (rows, num_labels), with sorted indices.
        labels: (docs, labels).
        count: number of neighbors per label.
    """
    rows = found.labels.clamp_min(0).numpy()
    has = torch.from_numpy(values_at(has_label, rows[:, None, :], labels[:, :, None]) > 0)  # (docs, labels, k)
    has &= (found.labels >= 0).unsqueeze(1)
    order = has.to(torch.uint8).argsort(dim=2, descending=True, stable=True)[:, :, :count]
    shape = (*labels.shape, rows.shape[1])
    known = has.gather(2, order)
    numbers = found.labels.unsqueeze(1).expand(shape).gather(2, order).masked_fill(~known, -1)
    return numbers, found.scores.unsqueeze(1).expand(shape).gather(2, order).float() * known


def pack_texts(texts: list[str]) -> Tensor:
    """Texts as the bytes of a tensor."""
    joined = "\0".join(text.replace("\0", " ") for text in texts).encode()
    return torch.from_numpy(np.frombuffer(joined, np.uint8).copy())


def unpack_texts(state: Any, what: str, most: int) -> list[str]:
    """The texts of `pack_texts`, none for None; a `UserError` if they are damaged, or more than `most`."""
    if state is None:
        return []
    try:
        texts = str(state.cpu().numpy().tobytes(), "utf8").split("\0")
        if state.dtype != torch.uint8 or len(texts) > most:
            raise ValueError(f"{len(texts):,} texts of type {state.dtype}")
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} of the checkpoint: damaged, {first_line(error)}") from error
    return texts


def pack(matrix: csr_array) -> dict[str, Any]:
    """A matrix as tensors."""
    index = np.int32 if matrix.nnz < 2**31 else np.int64
    parts = {
        "values": matrix.data.astype(np.float32),
        "columns": matrix.indices.astype(np.int32),
        "starts": matrix.indptr.astype(index),
    }
    return {name: torch.from_numpy(part) for name, part in parts.items()} | {"width": matrix.shape[1]}


def unpack(state: Any, what: str, rows: int | None = None, width: int | None = None) -> csr_array:
    """The matrix of `pack`; a `UserError` if it is damaged or has another shape. None stands for any size."""
    try:
        values, columns, starts = (state[name].cpu().numpy() for name in ("values", "columns", "starts"))
        shape = (len(starts) - 1, state["width"])
        if not isinstance(shape[1], int) or shape != (shape[0] if rows is None else rows, width or shape[1]):
            raise ValueError(f"a matrix of {shape[0]:,} rows and {shape[1]} columns")
        Lists(starts, columns).check(*shape)
        if values.dtype != np.float32 or values.shape != columns.shape or not np.isfinite(values).all():
            raise ValueError(f"values of type {values.dtype}, or not finite")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} of the checkpoint: damaged, {first_line(error)}") from error
    return csr_array((values, columns, starts), shape)
