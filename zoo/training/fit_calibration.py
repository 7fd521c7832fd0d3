"""Fits a `Calibration` to the candidate labels of labelled documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from datamodules.batch import LabelSpace, Targets
from heads.base import Ranking
from heads.engines.linear_engine import fold_numbers
from heads.tail.platt import fit_logistic
from heads.tail.rankings import relevant
from zoo.core.errors import UserError
from zoo.core.metrics import KS, calibration_error
from zoo.training.calibration import MOST_STEPS, Calibration, Kind, Method, design
from zoo.training.fit_thresholds import Candidates, Counts, Fitted, Target, all_cuts, fit_thresholds

IDENTITY = (0.0, 1.0, 0.0, 0.0)  # weights that leave scores as they are
RIDGE = 1.0  # of the squared distance from `IDENTITY`, which a few hundred candidates outweigh
LEAST_SLOPE = 1e-3  # of the logit, so that no label's scores are reversed
FOLDS = 5


class Report(NamedTuple):
    """What calibration changes on the documents that it was fitted to, by cross-validation.

    Attributes:
        errors: expected calibration error at each k, before and after.
        precision: P@k before and after.
        uncalibrated: what one threshold on the scores reaches.
        thresholds: what thresholds of each kind on the probabilities reach, and the strength of the shrinkage.
        documents: number of documents with labels.
        curves: scores of the best labels of each document, and whether they are correct, before and after.
    """

    errors: dict[int, tuple[float, float]]
    precision: dict[int, tuple[float, float]]
    uncalibrated: Counts
    thresholds: Fitted
    documents: int
    curves: dict[str, tuple[np.ndarray, np.ndarray]]


def calibrate_ranking(
    ranking: Ranking, targets: Targets, space: LabelSpace, method: Method, kind: Kind, target: Target, seed: int = 0
) -> tuple[Calibration, Report]:
    """Fit a calibration to rankings of labelled documents.

    Args:
        ranking: best labels of each document with uncalibrated scores; deeper rankings than `predict` gives.
        targets: labels of the documents.
        space: label space of the model.
        method: form of the probabilities.
        kind: thresholds to use.
        target: what they are chosen for.
        seed: of the folds of cross-validation.
    """
    labelled = (targets.counts > 0).nonzero().flatten()
    ranking, targets = Ranking(ranking.scores[labelled], ranking.labels[labelled]), targets.take(labelled)
    hits, known = relevant(ranking.labels, targets), ranking.labels >= 0
    if not 0 < hits.sum() < known.sum():
        raise UserError("all of the validation documents' candidates are correct, or none is: nothing can be learned")
    weights, steps = fit_probabilities(ranking, hits, space, method)
    width = ranking.labels.shape[1]
    made = Calibration(method, weights, width, kind, "", {}, space.scored_counts, steps)
    raw = candidates(ranking, hits, targets, space)
    after = made.ranked(ranking, width)
    found = candidates(after, relevant(after.labels, targets), targets, space)
    truth = (targets.rows.numpy(), targets.indices.numpy())
    fitted = fit_thresholds(found, truth, target, FOLDS, seed)
    fields = vars(made) | {"target": describe(target), "cuts": {k: v.tolist() for k, v in fitted.cuts.items()}}
    unseen = out_of_fold(ranking, hits, space, method, seed)
    errors, precision, curves = {}, {}, {}
    for k in KS:
        pairs = [(each.scores[:, :k], relevant(each.labels[:, :k], targets)) for each in (ranking, unseen)]
        errors[k] = before_after(calibration_error(s.flatten().numpy(), h.flatten().numpy()) for s, h in pairs)
        precision[k] = before_after(float(h.sum()) / (k * len(h)) for _, h in pairs)
    for name, each in {"scores": ranking, method: unseen}.items():
        top = each.labels[:, : max(KS)]
        right = relevant(top, targets)[top >= 0]
        curves[name] = each.scores[:, : max(KS)][top >= 0].numpy(), right.numpy()
    uncalibrated = one_threshold(raw, truth, target, seed)
    return Calibration(**fields), Report(errors, precision, uncalibrated, fitted, len(targets), curves)


def before_after(values: Iterable[float]) -> tuple[float, float]:
    before, after = values
    return before, after


def describe(target: Target) -> str:
    return f"{target.goal}={target.value:g}" if target.value else target.goal


def candidates(ranking: Ranking, hits: Tensor, targets: Targets, space: LabelSpace) -> Candidates:
    """Candidates of rankings as flat arrays."""
    known = ranking.labels >= 0
    return Candidates(
        documents=known.nonzero()[:, 0].numpy(),
        labels=ranking.labels[known].numpy(),
        scores=ranking.scores[known].double().numpy(),
        hits=hits[known].numpy(),
        support=np.bincount(targets.indices.numpy(), minlength=space.num_all).astype(float),
        counts=np.array(space.scored_counts),
        size=len(targets),
    )


def one_threshold(raw: Candidates, truth: tuple[np.ndarray, np.ndarray], target: Target, seed: int) -> Counts:
    """What one threshold on uncalibrated scores reaches in cross-validation."""
    total = None
    for fits, measured in raw.folds(truth, FOLDS, seed):
        cut = all_cuts(fits, target)["global"][0]
        counts = Counts.of(measured, np.full(len(raw.counts), cut))
        total = counts if total is None else total.plus(counts)
    assert total is not None
    return total


def out_of_fold(ranking: Ranking, hits: Tensor, space: LabelSpace, method: Method, seed: int) -> Ranking:
    """Calibrated rankings of each document by parameters that have not seen it."""
    fold_of = fold_numbers(len(hits), min(FOLDS, len(hits)), seed)
    scores, labels = torch.zeros_like(ranking.scores), torch.full_like(ranking.labels, -1)
    for fold in range(int(fold_of.max()) + 1):
        own, others = fold_of == fold, fold_of != fold
        rest = Ranking(ranking.scores[others], ranking.labels[others])
        weights, steps = fit_probabilities(rest, hits[others], space, method)
        made = Calibration(method, weights, 1, "global", "", {}, space.scored_counts, steps)
        part = made.ranked(Ranking(ranking.scores[own], ranking.labels[own]), scores.shape[1])
        scores[own], labels[own] = part.scores, part.labels
    return Ranking(scores, labels)


def fit_probabilities(
    ranking: Ranking, hits: Tensor, space: LabelSpace, method: Method
) -> tuple[list[float], list[list[float]]]:
    """Weights and steps of a `Calibration` by maximum likelihood."""
    known = ranking.labels >= 0
    counts = torch.tensor(space.scored_counts)
    inputs, right = design(ranking.scores[known], counts[ranking.labels[known]]).T, hits[known].double()
    start = torch.tensor(IDENTITY, dtype=torch.float64)
    weights = fit_logistic(inputs, right, start, lambda total: total, RIDGE)
    ends = torch.tensor([min(space.counts), max(space.counts)]).double().log1p()
    if (weights[1] + weights[3] * ends).min() < LEAST_SLOPE:  # it would reverse scores of the rarest or commonest
        weights = torch.cat([fit_logistic(inputs[:3], right, start[:3], lambda total: total, RIDGE), start[3:]])
        weights[1].clamp_(min=LEAST_SLOPE)
    if method == "platt":
        return weights.tolist(), [[], []]
    return weights.tolist(), isotonic_steps((weights @ inputs).numpy(), right.numpy())


def isotonic_steps(values: np.ndarray, hits: np.ndarray) -> list[list[float]]:
    """Centers of the blocks of equal probability, and these probabilities."""
    order = np.argsort(values, kind="stable")
    found = isotonic_regression(hits[order])
    starts = found.blocks[:-1]
    sizes = np.diff(found.blocks)
    centres = np.add.reduceat(values[order], starts) / sizes
    kept = np.append(True, np.diff(centres) > 0).nonzero()[0]
    if len(kept) > MOST_STEPS:
        kept = kept[np.linspace(0, len(kept) - 1, MOST_STEPS).round().astype(int)]
    probabilities = np.maximum.accumulate(found.x[starts[kept]].clip(0, 1))
    return [centres[kept].tolist(), probabilities.tolist()]
