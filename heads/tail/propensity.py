"""Propensity re-ranking: probabilities times a power of the inverse propensity, and the choice of the power."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Targets
from heads.base import Ranking
from heads.tail.rankings import Metric, metric_sums, sort_by_score
from zoo.core.exporting import is_exporting

GRID = tuple(i / 20 for i in range(21))  # exponents to choose from
EPSILON = 1e-12  # rounding differences between numbers of processes are below this


def by_propensity(ranking: Ranking, inverse: Tensor, power: float) -> Ranking:
    """Rank by x = r^a f, where r are inverse propensities (num_labels,) and f the scores.

    The score is 1 - (1 - x / R)^R, where R is the largest r^a: it increases with x, lies in [0, 1], is close to x for
    small x, and is f for a = 0.
    """
    ordered = sort_by_score(weighted(ranking, inverse, power), ranking.labels)
    largest = inverse.max() if is_exporting() else float(inverse.max())
    return as_probabilities(ordered, largest**power)


def as_probabilities(ranking: Ranking, largest: float | Tensor) -> Ranking:
    """Map sorted scores x, which are probabilities times factors up to R = `largest`, to 1 - (1 - x / R)^R."""
    scores = -torch.expm1(largest * torch.log1p(-(ranking.scores / largest).clamp(0, 1)))
    if not is_exporting():
        scores = scores.cummin(dim=1).values  # in order despite rounding
    return Ranking(scores * (ranking.labels >= 0), ranking.labels)


def weighted(ranking: Ranking, inverse: Tensor, power: float) -> Tensor:
    return inverse[ranking.labels.clamp_min(0)] ** power * ranking.scores


def exponent_sums(
    ranking: Ranking, targets: Targets, inverse: Tensor, weights: np.ndarray, metrics: tuple[Metric, ...]
) -> Tensor:
    """`metric_sums` of a batch for each exponent of the grid, (GRID, metrics, 2) float64.

    `weights` are the inverse propensities of the metrics; they include labels that training never saw.
    """
    orders = (sort_by_score(weighted(ranking, inverse, power), ranking.labels) for power in GRID)
    return torch.from_numpy(np.stack([metric_sums(order.labels, targets, weights, metrics) for order in orders]))


def best_exponent(gain: Tensor, keep: Tensor, allowed_loss: float) -> int:
    """Index of the largest gain, the first of ties, at which `keep` is at most `allowed_loss` below keep[0]."""
    allowed = keep >= keep[0] - allowed_loss - EPSILON
    best = gain[allowed].max()
    return int((allowed & (gain >= best - EPSILON)).nonzero()[0])
