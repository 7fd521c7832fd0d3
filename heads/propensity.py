"""Probabilities times a power of the inverse propensity, and which power is worth its price."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from datamodules.batch import Targets
from heads.base import Ranking
from heads.measures import Measure, in_order, relevant

GRID = tuple(i / 20 for i in range(21))  # exponents to choose from
EPSILON = 1e-12  # sums over another number of processes differ by less


def weighted(ranking: Ranking, inverse: Tensor, power: float) -> Tensor:
    """r^a f of ranked labels, whose inverse propensities r are (num_labels,)."""
    return inverse[ranking.labels.clamp_min(0)] ** power * ranking.scores


def by_propensity(ranking: Ranking, inverse: Tensor, power: float) -> Ranking:
    """Ranked by r^a f; the score is 1 - (1 - x / R)^R of it, R being the largest r^a.

    That rises with x, stays within [0, 1], is close to x where x is small, and is f where a is 0.
    """
    ordered = in_order(weighted(ranking, inverse, power), ranking.labels)
    largest = float(inverse.max()) ** power
    scores = -torch.expm1(largest * torch.log1p(-(ordered.scores / largest).clamp(0, 1)))
    return Ranking(scores.cummin(dim=1).values * (ordered.labels >= 0), ordered.labels)  # whatever the rounding


def exponent_sums(
    ranking: Ranking, targets: Targets, inverse: Tensor, weights: Tensor, measures: Sequence[Measure]
) -> Tensor:
    """What each exponent of the grid reaches on a batch and, last, what is possible, (measures, GRID + 1) double.

    `weights` are the inverse propensities that measure, (num_all,) double: labels that nobody can find count too.
    """
    hits = relevant(ranking.labels, targets)
    sums = torch.zeros(len(measures), len(GRID) + 1, dtype=torch.float64, device=hits.device)
    for column, power in enumerate(GRID):
        order = weighted(ranking, inverse, power).argsort(dim=1, descending=True, stable=True)
        labels, found = ranking.labels.gather(1, order), hits.gather(1, order)
        for row, measure in enumerate(measures):
            sums[row, column] = measure.reached(labels, found, weights)
    for row, measure in enumerate(measures):
        sums[row, -1] = measure.possible(targets, weights)
    return sums


def choice(gain: Tensor, keep: Tensor, allowed_loss: float) -> int:
    """Place of the largest gain, the first of several, where no more than `allowed_loss` of keep[0] is lost."""
    allowed = keep >= keep[0] - allowed_loss - EPSILON
    best = gain[allowed].max()
    return int((allowed & (gain >= best - EPSILON)).nonzero()[0])
