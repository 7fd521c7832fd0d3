"""Definitions of all metrics, on plain arrays; training, significance tests and reports share them.

To add a metric, add an entry to `DOCUMENT_METRICS`, `CORPUS_METRICS`, `HIERARCHICAL_METRICS` or `LABEL_METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.core.ragged import Lists

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

KS = (1, 3, 5)
MACRO_K = 5  # candidates per document that macro-averaged metrics count
MONITOR = "val/nDCG@5"  # default of early stopping, the best checkpoint and sweeps
HEADLINE_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")  # columns of short tables
PART_METRICS = ("P", "nDCG", "PSP", "PSnDCG", "macroF")  # logged for the parts of a head, such as experts
THRESHOLD = 0.5  # fixed threshold of F1, reported beside the tuned one
BINS = 15  # of scores, for calibration errors
FEW, MEDIUM = 20, 100  # maximum number of training documents of a label in these frequency classes
FREQUENCY_CLASSES = ("few", "medium", "many")
COSTS = ("seconds", "parameters", "memory")  # memory in MB
GROUP_TITLES = {  # of `label_groups`; the ranges are numbers of training documents
    "unseen": "unseen, 0",
    "oneshot": "one-shot, 1",
    "rare": "rare, 1 to 3",
    "few": f"few, up to {FEW}",
    "medium": f"medium, {FEW + 1} to {MEDIUM}",
    "many": f"many, over {MEDIUM}",
    "all": "all",
}


class Overlap(NamedTuple):
    """Numbers of labels and ancestors of each document: candidates and true ones, and what both have in common."""

    shared: Floats
    predicted: Floats
    true: Floats


@dataclass(frozen=True)
class RankedDocuments:
    """Documents with labels and their ranked candidates.

    Args:
        truth: distinct labels of each document, at least one.
        found: candidate labels of each document, best first.
        weights: inverse propensity of each label.
        closures: each label with its ancestors; None without a hierarchy.
    """

    truth: Lists
    found: Lists
    weights: Floats
    closures: Lists | None = None

    def __len__(self) -> int:
        return len(self.truth.sizes)

    def among(self, members: Bools) -> RankedDocuments:
        """Only these labels, (labels,), and the documents that have one of them: other candidates are skipped."""
        truth, found = (part.chosen(members[part.values]) for part in (self.truth, self.found))
        kept = truth.sizes > 0
        return RankedDocuments(truth.only(kept), found.only(kept), self.weights)

    @cached_property
    def is_hit(self) -> Bools:
        """Whether each candidate is a label of its document."""
        labels = len(self.weights)
        return np.isin(self.found.rows * labels + self.found.values, self.truth.rows * labels + self.truth.values)

    @cached_property
    def gains(self) -> Floats:
        """Inverse propensity of each candidate."""
        return np.asarray(self.weights[self.found.values])

    @cached_property
    def discounts(self) -> Floats:
        """1 / log2(rank + 1) of each candidate."""
        return discount(self.found.places)

    @cached_property
    def _best_gains(self) -> Floats:
        """Inverse propensities of true labels, in descending order within each document."""
        gains = self.weights[self.truth.values]
        return np.asarray(gains[np.lexsort((-gains, self.truth.rows))])

    def hits(self, k: int, weights: Floats | float = 1.0) -> Floats:
        """Sum of `weights` over the hits among the first k candidates, (documents,)."""
        counted = self.is_hit & (self.found.places < k)
        return np.bincount(self.found.rows, counted * weights, len(self)).astype(float)

    def best(self, k: int, discounted: bool = False) -> Floats:
        """Largest sum of inverse propensities that k candidates can reach, (documents,)."""
        places = self.truth.places
        weights = discount(places) if discounted else 1.0
        return np.bincount(self.truth.rows, self._best_gains * weights * (places < k), len(self)).astype(float)

    def overlap(self, k: int) -> Overlap:
        """Labels and ancestors of the first k candidates and of the truth."""
        if k not in self._overlaps:
            self._overlaps[k] = self._overlap(k)
        return self._overlaps[k]

    @cached_property
    def _overlaps(self) -> dict[int, Overlap]:
        return {}

    def _overlap(self, k: int) -> Overlap:
        found, truth = self._closed(self.found.chosen(self.found.places < k)), self._closed(self.truth)
        common = np.isin(found, truth, assume_unique=True)
        rows = (found[common], found, truth)
        shared, predicted, true = (np.bincount(part // len(self.weights), minlength=len(self)) for part in rows)
        return Overlap(shared.astype(float), predicted.astype(float), true.astype(float))

    def _closed(self, lists: Lists) -> NDArray[np.int64]:
        """Pairs of documents and their labels or ancestors, as document * labels + label, distinct."""
        assert self.closures is not None
        sizes = self.closures.sizes[lists.values]
        each = Lists.of_sizes(sizes, np.zeros(sizes.sum(), np.int64))
        values = self.closures.values[self.closures.offsets[lists.values].repeat(sizes) + each.places]
        return np.unique(lists.rows.repeat(sizes) * len(self.weights) + values)

    def ideal(self, k: int) -> Floats:
        """Largest sum of discounts that k candidates can reach, (documents,)."""
        reached = np.concatenate([[0.0], np.cumsum(discount(np.arange(k)))])
        return np.asarray(reached[np.minimum(self.truth.sizes, k)])


# Averaged over documents. `R` divides by the number of true labels, `RP` by min(k, number of true labels).
DOCUMENT_METRICS: dict[str, Callable[[RankedDocuments, int], Floats]] = {
    "P": lambda ranked, k: ranked.hits(k) / k,
    "nDCG": lambda ranked, k: ranked.hits(k, ranked.discounts) / ranked.ideal(k),
    "R": lambda ranked, k: ranked.hits(k) / ranked.truth.sizes,
    "RP": lambda ranked, k: ranked.hits(k) / np.minimum(ranked.truth.sizes, k),
}

# Numerator and denominator, summed over documents; the denominator is the best possible ranking (Jain et al. 2016).
CORPUS_METRICS: dict[str, Callable[[RankedDocuments, int], tuple[Floats, Floats]]] = {
    "PSP": lambda ranked, k: (ranked.hits(k, ranked.gains), ranked.best(k)),
    "PSnDCG": lambda ranked, k: (
        ranked.hits(k, ranked.gains * ranked.discounts) / ranked.ideal(k),
        ranked.best(k, discounted=True) / ranked.ideal(k),
    ),
}

# The same for labels with parents: precision, recall and F1 of the first k candidates, where both these and the true
# labels are extended by all their ancestors (Kiritchenko et al. 2006).
HIERARCHICAL_METRICS: dict[str, Callable[[RankedDocuments, int], tuple[Floats, Floats]]] = {
    "hP": lambda ranked, k: (ranked.overlap(k).shared, ranked.overlap(k).predicted),
    "hR": lambda ranked, k: (ranked.overlap(k).shared, ranked.overlap(k).true),
    "hF": lambda ranked, k: (2 * ranked.overlap(k).shared, ranked.overlap(k).predicted + ranked.overlap(k).true),
}

RANKING_METRICS = (*DOCUMENT_METRICS, *CORPUS_METRICS)
# Also computed among the labels of each of these groups alone, as `R@5/unseen`, over the documents that have one.
GROUP_METRICS = ("P", "nDCG", "R")
GROUPS = ("unseen", "rare", *FREQUENCY_CLASSES)


def f1(hits: Floats, predicted: Floats, support: Floats) -> Floats:
    """2 hits / (predicted + support); 0 / 0 is 0."""
    return 2 * hits / np.maximum(predicted + support, 1)


# Averaged over labels. A label was predicted `predicted` times, `hits` of them correctly; `support` documents have it.
LABEL_METRICS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "P": lambda hits, predicted, support: hits / np.maximum(predicted, 1),
    "R": lambda hits, predicted, support: hits / np.maximum(support, 1),
    "F": f1,
}


def reliability(scores: Floats, hits: Bools, bins: int = BINS) -> tuple[Floats, Floats, Floats]:
    """Number of candidates, their mean score and their share of hits in bins of equal width, (bins,) each."""
    cells = np.minimum((np.asarray(scores, np.float64) * bins).astype(int), bins - 1)
    sizes = np.bincount(cells, minlength=bins).astype(float)
    sums = (np.bincount(cells, values, bins) for values in (scores, hits))
    mean, share = (total / np.maximum(sizes, 1) for total in sums)
    return sizes, mean, share


def calibration_error(scores: Floats, hits: Bools, bins: int = BINS) -> float:
    """Expected calibration error: |mean score - share of hits|, averaged over the candidates (Guo et al. 2017)."""
    sizes, mean, share = reliability(scores, hits, bins)
    return float((sizes * np.abs(mean - share)).sum() / max(sizes.sum(), 1))


def discount(places: NDArray[np.int64]) -> Floats:
    return np.asarray(1 / np.log2(places + 2.0))


def frequency_class(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index in `FREQUENCY_CLASSES` by the number of training documents."""
    return np.searchsorted([FEW, MEDIUM], documents)


def label_groups(documents: NDArray[np.int64]) -> dict[str, Bools]:
    """Masks of the label groups that macro averages are reported for, by the number of training documents."""
    classes = frequency_class(documents)
    return {
        "all": np.ones(len(documents), bool),
        "unseen": documents == 0,
        "oneshot": documents == 1,
        "rare": (documents >= 1) & (documents <= 3),
        **{name: classes == i for i, name in enumerate(FREQUENCY_CLASSES)},
    }


def averaged_over_all(metrics: Mapping[str, float], documents: NDArray[np.int64]) -> dict[str, float]:
    """Turn means over the labels with test documents into means over all labels, of which the others count as 0.

    Args:
        metrics: of a run; frequency bins are dropped.
        documents: number of training documents of each label.
    """
    sizes = {group: int(members.sum()) for group, members in label_groups(documents).items()}
    share = {group: metrics.get(f"labels/{group}", 0) / max(size, 1) for group, size in sizes.items()}
    found: dict[str, float] = {}
    for name, value in metrics.items():
        metric, _, group = name.rpartition("/")
        if is_count(name):
            found |= {name: sizes[group]} if group in sizes else {}
        elif "macro" in metric:
            found |= {name: value * share[group]} if group in sizes else {}
        else:
            found[name] = value * (share["all"] if group.startswith("macroF1@") else 1)
    return found


def is_count(column: str) -> bool:
    """Whether the column is the size of a label group."""
    return "labels/" in column


def is_threshold(column: str) -> bool:
    return column.rpartition("/")[2] == "threshold"


def is_fraction(column: str) -> bool:
    """Whether the column is a metric in [0, 1], shown in %. Costs are not metrics."""
    return not is_count(column) and not is_threshold(column) and column not in COSTS


def is_better_when_higher(column: str) -> bool:
    """True for all metrics; False for costs, and for columns of training, which are losses."""
    return is_fraction(column) and not column.startswith("train/")


def best_mode(column: str) -> Literal["max", "min"]:
    """Direction of improvement, as checkpoints and early stopping want it."""
    return "max" if is_better_when_higher(column) else "min"


def percent(value: float) -> str:
    return f"{100 * value:.2f}"
