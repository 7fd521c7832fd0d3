"""Platt scaling: scores of a model as probabilities of being right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST, LARGEST = 1e-30, 1 - 2**-25  # probabilities beyond have the logit of these
NEAR = 1e-7  # enough to tell candidates apart where logits are features of a model
STEPS, ENOUGH = 100, 1e-10


def logits_of(probabilities: Tensor, least: float = SMALLEST) -> Tensor:
    """In double precision, and finite: probabilities closer than `least` to 0 or 1 have the logit of this distance."""
    return probabilities.double().clamp(least, min(1 - least, LARGEST)).logit()


def fit_sigmoid(logits: Tensor, hits: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """a and b of sigmoid(a * logit + b) that are likeliest for hits (0 or 1) of all processes together; a is above 0.

    As Platt (1999) has it, hits count (n + 1) / (n + 2) and misses 1 / (m + 2) of n and m: the optimum is finite even
    where a threshold parts them. Newton's method; only sums leave a process.

    Args:
        logits: of candidates, (candidates,) double.
        hits: which of them are right, (candidates,) double.
        total: the sum of a tensor over all processes.
    """
    ones = torch.ones_like(logits)
    right, size, middle, square = total(torch.stack([hits.sum(), ones.sum(), logits.sum(), logits.square().sum()]))
    if size == 0 or square - middle**2 / size < ENOUGH * size:  # nothing to tell one from another by
        return 1.0, 0.0
    targets = torch.where(hits > 0, (right + 1) / (right + 2), 1 / (size - right + 2))
    # of scores with mean 0 and deviation 1: then neither of the two is badly scaled
    mean, deviation = middle / size, (square / size - (middle / size) ** 2).sqrt()
    inputs = torch.stack([(logits - mean) / deviation, ones])
    prior = (right + 1) / (size + 2)
    weights = torch.stack([deviation.clamp_max(1), prior.logit()])
    before = _loss(weights, inputs, targets, total)
    for _ in range(STEPS):
        step = _newton(weights, inputs, targets, total)
        while (after := _loss(weights - step, inputs, targets, total)) > before and step.norm() > ENOUGH:
            step = step / 2
        weights, before = weights - step, after
        if step.norm() < ENOUGH:
            break
    # A part whose best candidates are wrong more often than others keeps its order all the same.
    slope = weights[0].clamp_min(1e-3) / deviation
    return float(slope), float(weights[1] - slope * mean)


def _loss(weights: Tensor, inputs: Tensor, targets: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    scores = weights @ inputs
    return total((torch.nn.functional.softplus(scores) - targets * scores).sum())


def _newton(weights: Tensor, inputs: Tensor, targets: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """The step that a parabola through the present place would want."""
    scores = (weights @ inputs).sigmoid()
    gradient, curve = inputs @ (scores - targets), (inputs * scores * (1 - scores)) @ inputs.T
    sums = total(torch.cat([gradient[:, None], curve], dim=1))
    ridge = 1e-12 * sums[:, 1:].trace() * torch.eye(2, dtype=sums.dtype, device=sums.device)
    step: Tensor = torch.linalg.solve(sums[:, 1:] + ridge, sums[:, 0])
    return step
