"""Decoded model files of omikuji. A tree is `{"Branch": {weights, children}}` or `{"Leaf": {weights, labels}}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csc_array

Classifiers = tuple[tuple[csc_array, int], ...]  # matrices of classifiers, and the column in each


def leaves(node: dict[str, Any]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Labels and weights of all leaves under a node of a decoded tree."""
    (kind, content) = next(iter(node.items()))
    if kind == "Leaf":
        yield content["labels"], content["weights"]
    else:
        for child in content["children"]:
            yield from leaves(child)


def paths(node: dict[str, Any], above: Classifiers = ()) -> Iterator[tuple[int, Classifiers]]:
    """Classifiers on the way from the root to each label of a decoded tree."""
    ((kind, content),) = node.items()
    weights = matrix(content["weights"])
    if kind == "Leaf":
        yield from ((label, (*above, (weights, i))) for i, label in enumerate(content["labels"]))
    else:
        for i, child in enumerate(content["children"]):
            yield from paths(child, (*above, (weights, i)))


def matrix(weights: dict[str, Any]) -> csc_array:
    """A decoded matrix (features + 1, classifiers); the last row is the bias."""
    ((kind, content),) = weights.items()
    if kind == "Dense":
        return csc_array(np.array(content["data"], np.float32).reshape(content["dim"]))
    rows = np.repeat(content["outer_inds"], np.diff(content["indptr"]))
    shape = (content["outer_dim"], content["inner_dim"])
    found = csc_array((np.array(content["data"], np.float32), (rows, np.array(content["inner_inds"], np.int64))), shape)
    found.sort_indices()
    return found


def values_in(weights: csc_array, column: int, rows: np.ndarray) -> np.ndarray:
    """Values of a column at some rows."""
    own = slice(*weights.indptr[column : column + 2])
    stored, values = weights.indices[own], weights.data[own]
    at = np.searchsorted(stored, rows).clip(max=max(len(stored) - 1, 0))
    return np.where(stored[at] == rows, values[at], 0) if len(stored) else np.zeros(len(rows), np.float32)


def column_norms(weights: dict[str, Any]) -> np.ndarray:
    """Norms of the classifiers in a decoded matrix (features + 1, classifiers), without their biases, the last row."""
    (kind, content) = next(iter(weights.items()))
    if kind == "Dense":
        values = np.array(content["data"], np.float64).reshape(content["dim"])
        return np.asarray(np.linalg.norm(values[:-1], axis=0))
    rows = np.repeat(content["outer_inds"], np.diff(content["indptr"]))
    squares = np.where(rows < content["outer_dim"] - 1, np.square(np.array(content["data"], np.float64)), 0)
    return np.sqrt(np.bincount(content["inner_inds"], squares, content["inner_dim"]))


def check_tree(node: dict[str, Any], features: int, labels: int) -> None:
    """Refuse a decoded tree with a `ValueError` if an index is out of range or a weight is not finite.

    The library checks itself that the parts of a tree fit each other.
    """
    ((kind, content),) = node.items()
    check_matrix(content["weights"], features + 1)  # the last row is the bias
    if kind == "Leaf":
        integers(content["labels"], labels)
    elif kind == "Branch":
        for child in content["children"]:
            check_tree(child, features, labels)
    else:
        raise ValueError(f"{str(kind)[:20]!r} is no node of a tree")


def check_matrix(weights: dict[str, Any], rows: int) -> None:
    ((kind, content),) = weights.items()
    data = np.asarray(content["data"], np.float64)
    if not np.isfinite(data).all():
        raise ValueError("weights are NaN or infinite")
    if kind == "Sparse":
        starts = integers(content["indptr"], len(data) + 1)
        outer, inner = integers(content["outer_inds"], rows), integers(content["inner_inds"], content["inner_dim"])
        ends = starts[:1].tolist(), starts[-1:].tolist()
        if len(starts) != len(outer) + 1 or ends != ([0], [len(data)]) or (np.diff(starts) < 0).any():
            raise ValueError("the rows of a matrix are not in order")
        if len(inner) != len(data) or content["outer_dim"] != rows:
            raise ValueError("the parts of a matrix have different sizes")
    elif kind != "Dense":
        raise ValueError(f"{str(kind)[:20]!r} is no matrix")


def integers(values: Any, limit: int) -> np.ndarray:
    """A list of indices, all of them below a limit."""
    found = np.asarray(values)
    if found.ndim != 1 or (len(found) and (found.dtype.kind != "i" or found.min() < 0 or found.max() >= limit)):
        raise ValueError(f"an index is not below {limit:,}")
    return found
