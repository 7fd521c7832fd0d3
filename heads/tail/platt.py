"""Platt scaling and logistic regression across processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST, LARGEST = 1e-30, 1 - 2**-25  # probabilities are clamped to these before the logit
NEAR = 1e-7  # a coarser bound, for logits that are features of a model
STEPS, TOLERANCE = 100, 1e-10


def logits_of(probabilities: Tensor, least: float = SMALLEST) -> Tensor:
    """Finite logits in double precision, of probabilities clamped to at least `least` from 0 and 1."""
    return probabilities.double().clamp(least, min(1 - least, LARGEST)).logit()


def mean_of_sigmoids(logits: Tensor) -> Tensor:
    """Logit of the members' mean probability, from (members, ...), in log space, so that nothing rounds to 1."""
    if len(logits) == 1:
        return logits[0]
    logits = logits.float()
    return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)


def fit_sigmoid(logits: Tensor, hits: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Fit a > 0 and b of sigmoid(a * logit + b) to hits (0 or 1) over all processes, by maximum likelihood.

    The targets are Platt's (1999): (n + 1) / (n + 2) for n hits and 1 / (m + 2) for m misses. They keep the optimum
    finite even if a threshold separates the two.

    Args:
        logits: (candidates,) double.
        hits: (candidates,) double.
        total: sum of a tensor over all processes.
    """
    ones = torch.ones_like(logits)
    right, size, middle, square = total(torch.stack([hits.sum(), ones.sum(), logits.sum(), logits.square().sum()]))
    if size == 0 or square - middle**2 / size < TOLERANCE * size:  # all logits are equal
        return 1.0, 0.0
    targets = torch.where(hits > 0, (right + 1) / (right + 2), 1 / (size - right + 2))
    # Standardised inputs keep Newton's method well conditioned.
    mean, deviation = middle / size, (square / size - (middle / size) ** 2).sqrt()
    inputs = torch.stack([(logits - mean) / deviation, ones])
    prior = (right + 1) / (size + 2)
    weights = torch.stack([deviation.clamp_max(1), prior.logit()])
    weights = fit_logistic(inputs, targets, weights, total)
    slope = weights[0].clamp_min(1e-3) / deviation  # never reverses the order of the scores
    return float(slope), float(weights[1] - slope * mean)


def fit_logistic(
    inputs: Tensor, targets: Tensor, start: Tensor, total: Callable[[Tensor], Tensor], ridge: float = 0.0
) -> Tensor:
    """Logistic regression by Newton's method; returns the weights, (features,) double.

    Processes exchange only sums and base all decisions on them, so they take the same steps.

    Args:
        inputs: (features, pairs) double.
        targets: (pairs,) double, in [0, 1].
        start: (features,) double, initial weights.
        total: sum of a tensor over all processes.
        ridge: penalty on the squared distance from `start`.
    """

    def loss(weights: Tensor) -> Tensor:
        scores = weights @ inputs
        return total((F.softplus(scores) - targets * scores).sum()) + ridge / 2 * (weights - start).square().sum()

    weights, before = start, loss(start)
    eye = torch.eye(len(start), dtype=start.dtype, device=start.device)
    for _ in range(STEPS):
        scores = (weights @ inputs).sigmoid()
        gradient, hessian = inputs @ (scores - targets), (inputs * scores * (1 - scores)) @ inputs.T
        sums = total(torch.cat([gradient[:, None], hessian], dim=1))
        hessian = sums[:, 1:] + (ridge + 1e-12 * sums[:, 1:].trace()) * eye  # never singular
        step = torch.linalg.solve(hessian, sums[:, 0] + ridge * (weights - start))
        while (after := loss(weights - step)) > before and step.norm() > TOLERANCE:
            step = step / 2
        weights, before = weights - step, after
        if step.norm() < TOLERANCE:
            break
    return weights
