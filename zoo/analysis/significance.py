"""Significance of the difference between two runs, by a paired bootstrap over test documents.

The metrics are those of `zoo.core.metrics`, computed from the stored predictions of a run. They are functions of sums
over documents, so that resamples are matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.core.metrics import (
    CORPUS_METRICS,
    DOCUMENT_METRICS,
    GROUP_METRICS,
    GROUPS,
    KS,
    LABEL_METRICS,
    MACRO_K,
    THRESHOLD,
    Bools,
    Floats,
    RankedDocuments,
    f1,
    label_groups,
)
from zoo.core.ragged import Lists

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = NDArray[np.int64]

LEVEL = 0.05  # of significance; the interval has a coverage of 1 - LEVEL
CELLS = 4_000_000  # maximum size of a matrix of resamples, 32 MB
DECIMALS = 12  # of a difference; beyond them are rounding errors, which must not count as better or worse
FEWEST = 20  # minimum number of test documents with a label of a group; fewer do not represent the variance


@dataclass
class Predictions:
    """Predictions of a run for its test documents, and what is needed to evaluate them."""

    truth: Lists  # labels of each document, distinct
    found: Lists  # candidates of each document, best first
    scores: Floats  # of the candidates
    documents: Ints  # training documents of each label
    weights: Floats  # inverse propensity of each label
    threshold: float  # the tuned one

    def with_labels(self) -> Predictions:
        """Remove documents without labels, which no metric counts."""
        kept = self.truth.sizes > 0
        scores = self.scores[np.repeat(kept, self.found.sizes)]
        truth, found = self.truth.only(kept), self.found.only(kept)
        return Predictions(truth, found, scores, self.documents, self.weights, self.threshold)


class Measurement:
    """Metrics of a run, as functions of sums over documents."""

    def __init__(self, predictions: Predictions) -> None:
        self.given = predictions.with_labels()
        self.ranked = RankedDocuments(self.given.truth, self.given.found, self.given.weights)
        self.size = len(self.ranked)  # documents with labels
        self.chosen: dict[str, Bools] = {
            "top": self.given.found.places < MACRO_K,
            f"{THRESHOLD:g}": self.given.scores >= THRESHOLD,
            "tuned": self.given.scores >= self.given.threshold,
        }

    @cached_property
    def names(self) -> list[str]:
        """Metrics in the order of `values`."""
        macro = [f"macro{kind}@{MACRO_K}/{group}" for group in self.groups for kind in LABEL_METRICS]
        f1 = [f"{kind}F1@{at}" for at in self.chosen if at != "top" for kind in ("micro", "macro")]
        return [*self.means, *self.ratios, *macro, *f1]

    def point(self) -> Floats:
        """Metrics on the test documents themselves."""
        (values,) = self.values(np.ones((1, self.size)))
        return np.asarray(values)

    def resampled(self, samples: int, seed: int) -> Floats:
        """Metrics of resamples, (samples, metrics). The same seed draws the same documents for every run."""
        widest = max(self.size, len(self.supported), 1)
        return np.concatenate([self.values(counts) for counts in resamples(self.size, samples, seed, CELLS // widest)])

    def values(self, counts: Floats) -> Floats:
        """Metrics for documents repeated `counts` times, (samples, documents) to (samples, metrics)."""
        means = (counts @ np.stack([*self.means.values()], axis=1)) / counts.sum(axis=1, keepdims=True)
        above, below = (np.stack([pair[i] for pair in self.ratios.values()], axis=1) for i in range(2))
        below = counts @ below
        below[below == 0] = np.nan  # metrics of a group without documents are undefined
        ratios = (counts @ above) / below
        return np.concatenate([means, ratios, *self._macro(counts)], axis=1)

    def _macro(self, counts: Floats) -> Iterator[Floats]:
        """Macro metrics by label group, then micro and macro F1 at each threshold."""
        support = counts @ self._support
        present = (support > 0).astype(float)
        for at, (predicting, hitting) in self._counted.items():
            predicted, hits = counts @ predicting, counts @ hitting
            if at == "top":
                members = np.stack([*self.groups.values()], axis=1).astype(float)
                sizes = present @ members
                sizes[sizes == 0] = np.nan  # metrics of a group without labels are undefined
                kinds = [metric(hits, predicted, support) for metric in LABEL_METRICS.values()]
                by_group = np.stack([(kind * present) @ members / sizes for kind in kinds], axis=2)
                yield by_group.reshape(len(counts), -1)
            else:
                # By document, because predictions of labels without documents count, too.
                pooled_hits, pooled = (counts @ part for part in self._pooled[at])
                micro = f1(pooled_hits, pooled, counts @ self.given.truth.sizes)
                macro = (f1(hits, predicted, support) * present).sum(axis=1) / present.sum(axis=1)
                yield np.stack([micro, macro], axis=1)

    @cached_property
    def _support(self) -> csr_array:
        return self._matrix(self.given.truth, np.ones(len(self.given.truth.values), bool))

    @cached_property
    def _counted(self) -> dict[str, tuple[csr_array, csr_array]]:
        """Predictions and hits for each selection, (documents, supported)."""
        found = self.given.found
        return {
            at: (self._matrix(found, chosen), self._matrix(found, chosen & self.ranked.is_hit))
            for at, chosen in self.chosen.items()
        }

    @cached_property
    def _pooled(self) -> dict[str, tuple[Floats, Floats]]:
        """Hits and predictions of each document for each selection."""
        return {
            at: (self._by_document(chosen & self.ranked.is_hit), self._by_document(chosen))
            for at, chosen in self.chosen.items()
        }

    def label_f1(self, at: str = "top") -> Floats:
        """F1 of each label in `supported`: F1@5, or at a threshold in `chosen`."""
        predicted, hits, support = (matrix.sum(axis=0) for matrix in (*self._counted[at], self._support))
        return np.asarray(f1(hits, predicted, support))

    @cached_property
    def supported(self) -> Ints:
        """Labels of at least one document, over which macro metrics are averaged."""
        return np.unique(self.given.truth.values)

    @cached_property
    def groups(self) -> dict[str, Bools]:
        """Masks over `supported`, without empty groups."""
        masks = label_groups(self.given.documents[self.supported])
        return {name: mask for name, mask in masks.items() if mask.any()}

    @property
    def unsure(self) -> set[str]:
        """Metrics of groups with too few documents for an interval."""
        sizes = {group: (self._support @ mask.astype(float) > 0).sum() for group, mask in self.groups.items()}
        few = [group for group, size in sizes.items() if size < FEWEST]
        macro = {f"macro{kind}@{MACRO_K}/{group}" for group in few for kind in LABEL_METRICS}
        return macro | {f"{name}@{k}/{group}" for group in few for name in GROUP_METRICS for k in KS}

    @cached_property
    def means(self) -> dict[str, Floats]:
        """Metrics that are means over documents, (documents,) each."""
        return {f"{name}@{k}": metric(self.ranked, k) for name, metric in DOCUMENT_METRICS.items() for k in KS}

    @cached_property
    def ratios(self) -> dict[str, tuple[Floats, Floats]]:
        """Metrics that are ratios of sums over documents, both (documents,)."""
        found = {f"{name}@{k}": metric(self.ranked, k) for name, metric in CORPUS_METRICS.items() for k in KS}
        masks = label_groups(self.given.documents)
        for group in GROUPS:
            if group in self.groups:  # means over the documents with a label of the group
                alone = self.ranked.among(masks[group])
                has = np.bincount(self.given.truth.rows, masks[group][self.given.truth.values], self.size) > 0
                for name in GROUP_METRICS:
                    for k in KS:
                        values = np.zeros(self.size)
                        values[has] = DOCUMENT_METRICS[name](alone, k)
                        found[f"{name}@{k}/{group}"] = values, has.astype(float)
        return found

    def _by_document(self, chosen: Bools) -> Floats:
        """Number of selected candidates of each document, (documents,)."""
        return np.bincount(self.given.found.rows, chosen, self.size).astype(float)

    def _matrix(self, lists: Lists, chosen: Bools) -> csr_array:
        """Indicator matrix of the selected pairs, (documents, supported)."""
        from scipy.sparse import csr_array

        column = np.full(len(self.given.weights), -1)
        column[self.supported] = np.arange(len(self.supported))
        kept = chosen & (column[lists.values] >= 0)
        rows, columns = lists.rows[kept], column[lists.values[kept]]
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(self.size, len(self.supported)))


def resamples(size: int, samples: int, seed: int, rows: int) -> Iterator[Floats]:
    """How often each document is drawn with replacement, in chunks of at most `rows`, (rows, documents)."""
    draws = np.random.default_rng(seed)
    for start in range(0, samples, max(rows, 1)):
        chunk = range(start, min(start + max(rows, 1), samples))
        yield np.stack([np.bincount(draws.integers(size, size=size), minlength=size) for _ in chunk]).astype(float)


class Difference(NamedTuple):
    """One metric of two rows, as fractions; the interval and p are nan if there are too few documents."""

    metric: str
    reference: float
    value: float
    low: float  # 95 % interval of the shifted differences
    high: float
    p: float

    @property
    def difference(self) -> float:
        return self.value - self.reference

    @property
    def is_significant(self) -> bool:
        return self.p < LEVEL


@dataclass
class Resampled:
    """Metrics of a row by name: on all documents, and on each resample, (samples,), nan if undefined."""

    point: dict[str, float]
    samples: dict[str, Floats]
    unsure: set[str] = field(default_factory=set)  # metrics with too few documents for an interval

    @classmethod
    def of(cls, measurements: list[Measurement], samples: int, seed: int) -> Resampled:
        """Means over the runs of a row, of the metrics that all runs have."""
        names = [name for name in measurements[0].names if all(name in one.names for one in measurements)]
        points = [dict(zip(one.names, one.point(), strict=True)) for one in measurements]
        drawn = [dict(zip(one.names, one.resampled(samples, seed).T, strict=True)) for one in measurements]
        return cls(
            {name: float(np.mean([point[name] for point in points])) for name in names},
            {name: np.mean([one[name] for one in drawn], axis=0) for name in names},
            set().union(*(one.unsure for one in measurements)),
        )


def differences(reference: Resampled, other: Resampled) -> list[Difference]:
    """Differences in all metrics that both have. p is two-sided: twice the share of resamples on the rarer side of 0.

    Resampled differences are first shifted so that their mean is the observed difference. This matters for macro
    metrics only, which are biased because resamples lose labels with few test documents.

    Resamples in which a metric is undefined are ignored. Metrics with too few documents have neither interval nor p.
    A resample without a difference counts on both sides. p is at most 1 and at least 1 / samples, the resolution of
    the bootstrap.
    """
    found = []
    for name in reference.point:
        if name not in other.point:
            continue
        by_sample = other.samples[name] - reference.samples[name]
        by_sample = by_sample[~np.isnan(by_sample)]
        if name in reference.unsure | other.unsure or not len(by_sample):
            found.append(Difference(name, reference.point[name], other.point[name], np.nan, np.nan, np.nan))
            continue
        by_sample = np.round(by_sample - by_sample.mean() + other.point[name] - reference.point[name], DECIMALS)
        low, high = np.clip(np.quantile(by_sample, [LEVEL / 2, 1 - LEVEL / 2]), -1, 1)
        rarer = min(float(np.mean(by_sample <= 0)), float(np.mean(by_sample >= 0)))
        p = min(max(2 * rarer, 1 / len(by_sample)), 1.0)
        found.append(Difference(name, reference.point[name], other.point[name], float(low), float(high), p))
    return found
