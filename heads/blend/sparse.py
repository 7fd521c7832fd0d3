"""Sparse matrices of a fitted model: lookups, nearest rows, and their form in a checkpoint."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from heads.base import Ranking, top_labels
from zoo.core.cores import available_cores
from zoo.core.errors import UserError

DENSE = 2**22  # largest number of cosines in a block of documents
ROWS = 64  # documents per block: small, so that a batch has blocks for all cores


def values_at(matrix: csr_array, rows: np.ndarray, columns: np.ndarray) -> NDArray[np.float32]:
    """Values at positions that broadcast against each other, 0 where nothing is stored.

    Indices of the matrix must be sorted and unique.
    """
    width = matrix.shape[1]
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

    with ThreadPoolExecutor(min(available_cores(), len(blocks))) as threads:  # SciPy's products release the GIL
        tops = list(threads.map(best, blocks))
    scores, rows = (torch.cat(part) for part in zip(*((top.scores, top.labels) for top in tops), strict=True))
    return Ranking(scores, rows.masked_fill(scores <= 0, -1))


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
        found = state["width"]
        dtypes = (values.dtype.name, columns.dtype.name, starts.dtype.name)
        good = dtypes[:2] == ("float32", "int32") and dtypes[2] in ("int32", "int64")
        good = good and values.shape == columns.shape == (starts[-1],) and starts[0] == 0
        good = good and len(starts) - 1 == (len(starts) - 1 if rows is None else rows)
        good = good and found == (found if width is None else width) and bool((np.diff(starts) >= 0).all())
        row = np.arange(len(starts) - 1).repeat(np.diff(starts)) if good else starts[:0]
        ascending = (np.diff(columns) > 0) | (np.diff(row) > 0)
        good = good and bool(ascending.all() and np.isfinite(values).all())
        good = good and (not len(columns) or (columns.min() >= 0 and columns.max() < found))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{what} of the checkpoint: damaged") from error
    if not good:
        raise UserError(f"{what} of the checkpoint: damaged, or made for another corpus")
    return csr_array((values, columns, starts), (len(starts) - 1, found))
