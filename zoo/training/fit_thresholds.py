"""Thresholds for a target: one for all labels, one per frequency class, or one per label shrunk towards its class's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from scipy.special import expit, logit

from heads.engines.linear_engine import fold_numbers
from zoo.core.errors import UserError
from zoo.core.metrics import FREQUENCY_CLASSES, Bools, Floats, f1, frequency_class
from zoo.training.calibration import KINDS, Kind

STRENGTHS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, np.inf)  # of the shrinkage, in positive documents
STEPS = 50  # of Dinkelbach's algorithm; it usually takes five
NEAR = 1e-9  # distance of a threshold from 0 and 1 before the logit
Key = TypeVar("Key")
Goal = Literal["micro-f1", "macro-f1", "precision", "labels"]
GOALS = "micro-f1, macro-f1, precision=P such as precision=0.9, or labels=N such as labels=4.5"


class Target(NamedTuple):
    """What thresholds are chosen for: the best F1, the most hits with a precision, or a mean number of labels."""

    goal: Goal
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Target:
        if text in ("micro-f1", "macro-f1"):
            return cls(text)  # type: ignore[arg-type]
        found = re.fullmatch(r"(precision|labels)=(\d+(?:\.\d+)?|\.\d+)", text)
        if found is None or not (value := float(found[2])) or (found[1] == "precision" and value > 1):
            raise UserError(f"`target={text}` is unknown: give {GOALS}")
        return cls(found[1], value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Candidates:
    """Candidate labels of labelled documents, as flat arrays: nothing has the size of documents times labels.

    Attributes:
        documents: document of each candidate.
        labels: its label.
        scores: its probability.
        hits: whether the document has the label.
        support: number of documents with each label, (num_all,), also of labels that are never candidates.
        counts: number of training documents of each label that the model knows, (num_labels,).
        size: number of documents.
    """

    documents: np.ndarray
    labels: np.ndarray
    scores: Floats
    hits: Bools
    support: Floats
    counts: np.ndarray
    size: int

    @property
    def classes(self) -> np.ndarray:
        """Frequency class of each label."""
        return frequency_class(self.counts)

    def folds(self, truth: tuple[np.ndarray, np.ndarray], count: int, seed: int) -> Iterator[tuple[Candidates, ...]]:
        """Yield parts for fitting and for measuring; `truth` are documents and labels of all true pairs."""
        fold_of = fold_numbers(self.size, min(count, self.size), seed).numpy()
        for fold in range(int(fold_of.max()) + 1):
            yield tuple(self._part(fold_of != fold if fits else fold_of == fold, truth) for fits in (True, False))

    def _part(self, kept: Bools, truth: tuple[np.ndarray, np.ndarray]) -> Candidates:
        own = kept[self.documents]
        support = np.bincount(truth[1][kept[truth[0]]], minlength=len(self.support)).astype(float)
        return replace(
            self,
            documents=self.documents[own],
            labels=self.labels[own],
            scores=self.scores[own],
            hits=self.hits[own],
            support=support,
            size=int(kept.sum()),
        )


def best_cuts(found: Candidates, groups: np.ndarray, target: Target, count: int) -> Floats:
    """Threshold of each group of labels, (count,); NaN for a group without candidates.

    Args:
        found: candidates.
        groups: group of each label, (num_labels,).
        target: what to choose for.
        count: number of groups.
    """
    group = groups[found.labels]
    order = np.lexsort((-found.scores, group))
    group, scores, hits = group[order], found.scores[order], found.hits[order]
    sizes = np.bincount(group, minlength=count)
    starts = np.cumsum(sizes) - sizes
    predicted = np.arange(len(group)) - starts[group] + 1.0
    reached = np.cumsum(hits) - np.append(0, np.cumsum(hits))[starts][group] + 0.0
    last = np.append((scores[1:] < scores[:-1]) | (group[1:] > group[:-1]), True)[: len(group)]  # of equal scores
    support = np.bincount(groups, found.support[: len(groups)], count)
    if target.goal == "micro-f1":
        ratio = 0.0
        for _ in range(STEPS):  # Dinkelbach 1967: maximize 2 hits - F * predicted for the best F so far
            depth = best_depth(2 * reached - ratio * predicted, group, last, starts, sizes)
            total = f1(reached[(starts + depth - 1)[depth > 0]].sum(), depth.sum(), found.support.sum())
            if total <= ratio:
                break
            ratio = float(total)
    elif target.goal == "macro-f1":
        gains = np.cumsum(label_gains(found)[order])
        before = np.append(0, gains)[starts][group]
        depth = best_depth(gains - before, group, last, starts, sizes)
    elif target.goal == "precision":
        enough = reached >= target.value * predicted
        depth = best_depth(np.where(enough, predicted, -np.inf), group, last, starts, sizes)
    else:
        wanted = target.value * found.size * support / max(support.sum(), 1)
        depth = best_depth(wanted[group] - np.abs(predicted - wanted[group]), group, last, starts, sizes)
    return thresholds_at(depth, scores, starts, sizes)


def best_depth(utility: Floats, group: np.ndarray, last: Bools, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Number of candidates of each group with the highest utility, the first of ties; that of none is 0."""
    best = np.zeros(len(sizes))
    np.maximum.at(best, group[last], utility[last])
    reaches = np.flatnonzero(last & (utility >= best[group]) & (utility > 0))
    depth = np.zeros(len(sizes), np.int64)
    depth[group[reaches][::-1]] = (reaches - starts[group[reaches]] + 1)[::-1]
    return depth


def label_gains(found: Candidates) -> Floats:
    """What each candidate adds to the F1 of its label, after those of this label with higher scores."""
    order = np.lexsort((-found.scores, found.labels))
    labels, hits = found.labels[order], found.hits[order]
    sizes = np.bincount(labels, minlength=len(found.counts))
    starts = np.cumsum(sizes) - sizes
    predicted = np.arange(len(labels)) - starts[labels] + 1.0
    reached = np.cumsum(hits) - np.append(0, np.cumsum(hits))[starts][labels] + 0.0
    values = f1(reached, predicted, found.support[labels])
    gains = np.diff(values, prepend=0)
    gains[starts[sizes > 0]] = values[starts[sizes > 0]]
    back = np.empty(len(order))
    back[order] = gains
    return back


def thresholds_at(depth: np.ndarray, scores: Floats, starts: np.ndarray, sizes: np.ndarray) -> Floats:
    """Thresholds in the middle between the last predicted candidate and the next one."""
    padded = np.append(scores, 0.0)
    above = np.where(depth > 0, padded[(starts + depth - 1).clip(min=0)], 1.0)
    below = np.where(depth < sizes, padded[(starts + depth).clip(max=len(scores))], above)
    return np.where(sizes > 0, (above + below) / 2, np.nan)


def all_cuts(found: Candidates, target: Target) -> dict[Kind, Floats]:
    """Thresholds of each kind; those of labels are not shrunk, and NaN for labels without candidates."""
    labels, classes = len(found.counts), found.classes
    single = best_cuts(found, np.zeros(labels, np.int64), target, 1)
    single = np.where(np.isnan(single), 0.5, single)
    by_class = best_cuts(found, classes, target, len(FREQUENCY_CLASSES))
    by_class = np.where(np.isnan(by_class), single[0], by_class)
    return {"global": single, "class": by_class, "label": best_cuts(found, np.arange(labels), target, labels)}


def shrunk(cuts: dict[Kind, Floats], found: Candidates, strength: float) -> Floats:
    """Threshold of each label: the mean logit of its own, which counts as often as it has documents, and its class's.

    The class's counts `strength` times.
    """
    by_class, own = cuts["class"][found.classes], cuts["label"]
    trust = found.support[: len(own)] / np.maximum(found.support[: len(own)] + strength, 1e-9)
    trust = np.where(np.isnan(own) | np.isinf(strength), 0, trust)
    own, by_class = (logit(cuts.clip(NEAR, 1 - NEAR)) for cuts in (np.where(np.isnan(own), by_class, own), by_class))
    return np.asarray(expit(trust * own + (1 - trust) * by_class))


class Counts(NamedTuple):
    """Predictions of each label: how many, how many of them correct, and documents that have it, (num_all,)."""

    predicted: Floats
    hits: Floats
    support: Floats

    @classmethod
    def of(cls, found: Candidates, thresholds: Floats) -> Counts:
        chosen = found.scores >= thresholds[found.labels]
        size = len(found.support)
        predicted = np.bincount(found.labels[chosen], minlength=size).astype(float)
        return cls(
            predicted, np.bincount(found.labels[chosen & found.hits], minlength=size).astype(float), found.support
        )

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def micro_f1(self) -> float:
        return float(f1(self.hits.sum(), self.predicted.sum(), self.support.sum()))

    @property
    def macro_f1(self) -> float:
        """Mean over the labels that a document has."""
        return float(f1(self.hits, self.predicted, self.support).sum() / max((self.support > 0).sum(), 1))

    @property
    def precision(self) -> float:
        return float(self.hits.sum() / max(self.predicted.sum(), 1))

    def reaches(self, target: Target) -> tuple[float, float]:
        """How well a target is reached; larger is better."""
        if target.goal == "precision" and self.precision < target.value:
            return 0.0, self.precision
        by_goal = {"precision": float(self.hits.sum()), "macro-f1": self.macro_f1}
        return 1.0, by_goal.get(target.goal, self.micro_f1)


class Fitted(NamedTuple):
    """Thresholds of each kind, the strength of the shrinkage, and what they reach in cross-validation."""

    cuts: dict[Kind, Floats]
    strength: float
    reached: dict[Kind, Counts]


def fit_thresholds(
    found: Candidates, truth: tuple[np.ndarray, np.ndarray], target: Target, folds: int = 5, seed: int = 0
) -> Fitted:
    """Fit thresholds of each kind; the strength of the shrinkage is chosen by cross-validation over documents."""
    by_strength: dict[float, Counts] = {}
    others: dict[Kind, Counts] = {}
    for fits, measured in found.folds(truth, folds, seed):
        cuts = all_cuts(fits, target)
        each = {"global": np.full(len(found.counts), cuts["global"][0]), "class": cuts["class"][found.classes]}
        for kind in KINDS[:2]:
            add(others, kind, Counts.of(measured, each[kind]))
        for strength in STRENGTHS:
            add(by_strength, strength, Counts.of(measured, shrunk(cuts, fits, strength)))
    best = max(STRENGTHS, key=lambda strength: (by_strength[strength].reaches(target), strength))
    cuts = all_cuts(found, target)
    return Fitted(cuts | {"label": shrunk(cuts, found, best)}, best, others | {"label": by_strength[best]})


def add(total: dict[Key, Counts], key: Key, counts: Counts) -> None:
    total[key] = total[key].plus(counts) if key in total else counts
