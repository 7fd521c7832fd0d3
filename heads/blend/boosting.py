"""Gradient-boosted trees: fitted by scikit-learn, stored as tensors, evaluated without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.core.errors import WIDEST, UserError, check_low, check_range, check_width
from zoo.core.extras import missing_extra

DTYPES = {
    "feature": torch.int32,
    "threshold": torch.float64,
    "missing_left": torch.bool,
    "left": torch.int32,
    "right": torch.int32,
    "value": torch.float64,
    "roots": torch.int32,
    "start": torch.float64,
    "gains": torch.float64,
}
LARGEST = np.finfo(np.float64).max
FEW = 512  # pairs, those of a few documents
WALKED = ("feature", "threshold", "missing_left", "left", "right", "value", "roots")  # what an evaluation reads


@dataclass(frozen=True)
class Boosting:
    """Settings of gradient boosting with the log loss.

    Args:
        trees: number of trees.
        lr: factor of each tree.
        leaves: maximum number of leaves of a tree.
        least: minimum number of pairs in a leaf, at most a hundredth of all pairs.
        l2: L2 regularization of the values of leaves.
    """

    trees: int = 300
    lr: float = 0.06
    leaves: int = 12
    least: int = 200
    l2: float = 1.0

    def __post_init__(self) -> None:
        check_width(**{"ranker.trees": self.trees})
        check_range(2, WIDEST, **{"ranker.leaves": self.leaves})
        check_low(1, **{"ranker.least": self.least})
        check_range(1e-9, 1, **{"ranker.lr": self.lr})
        check_low(0, **{"ranker.l2": self.l2})


class BoostedTrees(nn.Module):
    """Binary classifier; scikit-learn is needed only to fit it.

    Friedman 2001, "Greedy function approximation: a gradient boosting machine", with histograms as in LightGBM. The
    nodes of all trees are in one array each; both children of a leaf are the leaf itself.

    Args:
        features: number of features.
        settings: settings of the fit.
    """

    def __init__(self, features: int, settings: Boosting) -> None:
        super().__init__()
        self.features, self.settings = features, settings
        self.nodes: dict[str, Tensor] | None = None
        self.lists: list[list[Any]] = []  # the nodes and roots as Python values
        self.arrays: tuple[np.ndarray, ...] = ()  # and as arrays, with both children of a node next to each other

    @property
    def fitted(self) -> bool:
        return self.nodes is not None

    def learn(self, inputs: np.ndarray, hits: np.ndarray, seed: int = 0) -> None:
        """Fit to inputs (pairs, features), NaN if missing, and hits (pairs,) 0 or 1."""
        settings = self.settings
        model = library().HistGradientBoostingClassifier(
            max_iter=settings.trees,
            learning_rate=settings.lr,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=min(settings.least, max(len(hits) // 100, 1)),
            l2_regularization=settings.l2,
            early_stopping=False,
            random_state=seed,
        )
        unknown = np.isnan(inputs).all(axis=0)  # scikit-learn rejects columns without any value
        model.fit(np.where(unknown, 0, inputs) if unknown.any() else inputs, hits)
        self.set_extra_state(exported(model, self.features))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (pairs,) in double precision, on the CPU."""
        assert self.nodes is not None
        columns = np.ascontiguousarray(inputs.cpu().double().numpy().T)
        logits = np.full(len(inputs), float(self.nodes["start"]))
        values = self._descended(columns) if len(inputs) <= FEW else self._divided(columns)
        for value in values:  # in the order of trees, so that a sum does not depend on the other pairs
            logits += value
        return torch.from_numpy(logits)

    def _descended(self, columns: np.ndarray) -> Iterable[np.ndarray]:
        """Values of each tree for all pairs (pairs,), by one step down all trees at a time: fast for few pairs."""
        feature, threshold, missing_left, children, value, roots = self.arrays
        size = columns.shape[1]
        node, flat, pair = roots.repeat(size), columns.ravel(), np.tile(np.arange(size), len(roots))
        while True:
            x, bound = flat[feature[node] * size + pair], threshold[node]
            goes_right = (x > bound) | (np.isnan(x) & ~missing_left[node])
            below = children[2 * node + goes_right]
            if (below == node).all():
                break
            node = below
        values: np.ndarray = value[node].reshape(len(roots), size)
        return values

    def _divided(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """The same by dividing the pairs at each split, one tree after the other: fast for many pairs."""
        feature, threshold, missing_left, left, right, value, roots = self.lists
        every = np.arange(columns.shape[1], dtype=np.int32)
        found = np.zeros(len(every))
        for root in roots:
            parts = [(root, every)]
            while parts:
                node, rows = parts.pop()
                if left[node] == node:
                    found[rows] = value[node]
                elif len(rows):
                    x = columns[feature[node]].take(rows)
                    goes_left = ~(x > threshold[node]) if missing_left[node] else x <= threshold[node]  # x may be NaN
                    parts += [(left[node], rows[goes_left]), (right[node], rows[~goes_left])]
            yield found

    def importances(self) -> Tensor:
        """Share of each feature in the gain of all splits, (features,)."""
        assert self.nodes is not None
        gains = self.nodes["gains"]
        return gains / gains.sum().clamp_min(1e-12)

    def get_extra_state(self) -> dict[str, Tensor] | None:
        return self.nodes

    def set_extra_state(self, state: dict[str, Tensor] | None) -> None:
        if state is None:
            self.nodes, self.lists, self.arrays = None, [], ()
            return
        try:
            nodes = {name: state[name].cpu() for name in DTYPES}
            check_trees(nodes, self.features, self.settings.trees)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError("the boosted trees of the checkpoint are damaged, or of other features") from error
        self.nodes, self.lists = nodes, [nodes[name].tolist() for name in WALKED]
        children = torch.stack([nodes["left"], nodes["right"]], dim=1).flatten()
        parts = (nodes["feature"].long(), nodes["threshold"], nodes["missing_left"], children.long())
        self.arrays = tuple(part.numpy() for part in (*parts, nodes["value"], nodes["roots"].long()))


def exported(model: Any, features: int) -> dict[str, Tensor]:
    """Arrays of a fitted `HistGradientBoostingClassifier` of two classes."""
    trees = [predictor.nodes for (predictor,) in model._predictors]
    nodes = np.concatenate(trees)
    roots = np.cumsum([0, *(len(tree) for tree in trees[:-1])])
    offsets = roots.repeat([len(tree) for tree in trees])
    own, leaf = np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
    found = {
        "feature": np.where(leaf, 0, nodes["feature_idx"]),
        "threshold": np.where(leaf, 0.0, nodes["num_threshold"]).clip(-LARGEST, LARGEST),  # infinite: is it missing?
        "missing_left": nodes["missing_go_to_left"].astype(bool),
        "left": np.where(leaf, own, nodes["left"] + offsets),
        "right": np.where(leaf, own, nodes["right"] + offsets),
        "value": np.where(leaf, nodes["value"], 0.0),
        "roots": roots,
        "start": np.asarray(model._baseline_prediction).reshape(()),
        "gains": np.bincount(nodes["feature_idx"][~leaf], nodes["gain"][~leaf].clip(0), features),
    }
    return {name: torch.from_numpy(np.array(part)).to(DTYPES[name]) for name, part in found.items()}


def check_trees(nodes: dict[str, Tensor], features: int, trees: int) -> None:
    """Refuse what are not at most `trees` trees with a `ValueError`; paths end, as children come after parents."""
    size, roots = len(nodes["value"]), nodes["roots"].long()
    shapes = dict.fromkeys(DTYPES, (size,)) | {"roots": (len(roots),), "start": (), "gains": (features,)}
    if any(nodes[name].dtype != kind or nodes[name].shape != shapes[name] for name, kind in DTYPES.items()):
        raise ValueError("other arrays")
    own, left, right = torch.arange(size), nodes["left"].long(), nodes["right"].long()
    leaf = (left == own) & (right == own)
    inner = (left > own) & (right > own) & (torch.maximum(left, right) < size)
    in_range = (nodes["feature"] >= 0) & (nodes["feature"] < features)
    finite = nodes["value"].abs().sum().isfinite() and nodes["start"].isfinite() and nodes["gains"].isfinite().all()
    if not ((leaf | inner) & in_range).all() or not finite or not nodes["threshold"].isfinite().all():
        raise ValueError("not trees")
    if not 0 < len(roots) <= trees or roots.min() < 0 or roots.max() >= size:
        raise ValueError("no roots, or too many")


def library() -> Any:
    """Import scikit-learn's ensembles, an optional dependency."""
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise missing_extra(error, "linear") from None
    return ensemble
