"""Decoded model files of omikuji. A tree is `{"Branch": {weights, children}}` or `{"Leaf": {weights, labels}}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def leaves(node: dict[str, Any]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Labels and weights of all leaves under a node of a decoded tree."""
    (kind, content) = next(iter(node.items()))
    if kind == "Leaf":
        yield content["labels"], content["weights"]
    else:
        for child in content["children"]:
            yield from leaves(child)


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
