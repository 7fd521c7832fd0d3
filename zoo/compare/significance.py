"""Whether two runs differ by more than the chance of their test documents: a paired bootstrap.

The definitions of `zoo.metrics.RankingMetrics`, from what a run has kept and for any number of times that each document
is drawn. All metrics are made of sums over documents, so a resample is one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KS = (1, 3, 5)
TOP = 5  # candidates of a document that macro metrics look at
FIXED = 0.5  # threshold of the metrics that are not tuned
LEVEL = 0.05  # of significance; the interval leaves out as much
CELLS = 4_000_000  # numbers at most in a matrix of resamples, 32 MB
DECIMALS = 12  # of a difference: beyond them is the rounding of sums, which would count as better or worse
FEWEST = 20  # test documents with a label of a group: of fewer, resamples show too little of the chance there is
GROUPS = ("all", "oneshot", "rare", "few", "medium", "many")


class Lists(NamedTuple):
    """Lists of different lengths, one after the other."""

    sizes: Ints
    values: Ints

    @property
    def rows(self) -> Ints:
        """Whose each value is."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def places(self) -> Ints:
        """Place of each value in its list, from 0."""
        return np.arange(len(self.values)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)

    def only(self, kept: Bools) -> Lists:
        """The lists where `kept`."""
        return Lists(self.sizes[kept], self.values[np.repeat(kept, self.sizes)])


@dataclass
class Predictions:
    """What a run found in each document, and what it needs to be measured."""

    truth: Lists  # labels of each document, distinct
    found: Lists  # candidates of each document, best first
    scores: Floats  # of the candidates
    documents: Ints  # training documents of each label
    weights: Floats  # inverse propensity of each label
    threshold: float  # the tuned one

    def with_labels(self) -> Predictions:
        """Without the documents that carry no label, which count nowhere."""
        kept = self.truth.sizes > 0
        scores = self.scores[np.repeat(kept, self.found.sizes)]
        truth, found = self.truth.only(kept), self.found.only(kept)
        return Predictions(truth, found, scores, self.documents, self.weights, self.threshold)


class Measurement:
    """Sums over documents that every metric is made of."""

    def __init__(self, predictions: Predictions) -> None:
        self.given = predictions.with_labels()
        self.size = len(self.given.truth.sizes)  # documents that count
        truth, found = self.given.truth, self.given.found
        keys = truth.rows * len(self.given.weights) + truth.values
        self.hit: Bools = np.isin(found.rows * len(self.given.weights) + found.values, keys)
        self.chosen: dict[str, Bools] = {
            "top": found.places < TOP,
            f"{FIXED:g}": self.given.scores >= FIXED,
            "tuned": self.given.scores >= self.given.threshold,
        }

    @cached_property
    def names(self) -> list[str]:
        """Metrics in the order of `values`."""
        macro = [f"macro{kind}@{TOP}/{group}" for group in self.groups for kind in "PRF"]
        f1 = [f"{kind}F1@{at}" for at in self.chosen if at != "top" for kind in ("micro", "macro")]
        return [*self.means, *self.ratios, *macro, *f1]

    def point(self) -> Floats:
        """The metrics themselves: each document once."""
        (values,) = self.values(np.ones((1, self.size)))
        return np.asarray(values)

    def resampled(self, samples: int, seed: int) -> Floats:
        """The metrics of resamples, (samples, metrics). The same seed draws the same documents for every run."""
        widest = max(self.size, len(self.supported), 1)
        return np.concatenate([self.values(counts) for counts in resamples(self.size, samples, seed, CELLS // widest)])

    def values(self, counts: Floats) -> Floats:
        """Metrics where each document is there so many times, (samples, documents) to (samples, metrics)."""
        means = (counts @ np.stack([*self.means.values()], axis=1)) / counts.sum(axis=1, keepdims=True)
        above, below = (np.stack([pair[i] for pair in self.ratios.values()], axis=1) for i in range(2))
        ratios = (counts @ above) / (counts @ below)
        return np.concatenate([means, ratios, *self._macro(counts)], axis=1)

    def _macro(self, counts: Floats) -> Iterator[Floats]:
        """Of labels by group, then micro and macro F1 at each threshold."""
        support = counts @ self._support
        present = (support > 0).astype(float)
        for at, (predicting, hitting) in self._counted.items():
            predicted, hits = counts @ predicting, counts @ hitting
            f = 2 * hits / np.maximum(predicted + support, 1)
            if at == "top":
                members = np.stack([*self.groups.values()], axis=1).astype(float)
                sizes = present @ members
                sizes[sizes == 0] = np.nan  # without any label of a group its metrics are not defined
                kinds = (hits / np.maximum(predicted, 1), hits / np.maximum(support, 1), f)
                by_group = np.stack([(kind * present) @ members / sizes for kind in kinds], axis=2)
                yield by_group.reshape(len(counts), -1)
            else:
                # By documents, since predictions of labels that no document carries count here too.
                pooled_hits, pooled = (counts @ part for part in self._pooled[at])
                micro = 2 * pooled_hits / (pooled + counts @ self.given.truth.sizes)
                macro = (f * present).sum(axis=1) / present.sum(axis=1)
                yield np.stack([micro, macro], axis=1)

    @cached_property
    def _support(self) -> csr_array:
        return self._matrix(self.given.truth, np.ones(len(self.given.truth.values), bool))

    @cached_property
    def _counted(self) -> dict[str, tuple[csr_array, csr_array]]:
        """Predictions and hits for each way to choose, (documents, supported)."""
        found = self.given.found
        return {
            at: (self._matrix(found, chosen), self._matrix(found, chosen & self.hit))
            for at, chosen in self.chosen.items()
        }

    @cached_property
    def _pooled(self) -> dict[str, tuple[Floats, Floats]]:
        """Hits and predictions of each document for each way to choose."""
        return {
            at: (self._by_document(chosen & self.hit), self._by_document(chosen)) for at, chosen in self.chosen.items()
        }

    @cached_property
    def supported(self) -> Ints:
        """Labels that some document carries: macro metrics are means over these, in every resample."""
        return np.unique(self.given.truth.values)

    @cached_property
    def groups(self) -> dict[str, Bools]:
        """Masks over `supported`; a group without a label has no metrics."""
        documents = self.given.documents[self.supported]
        masks = {
            "all": np.ones(len(documents), bool),
            "oneshot": documents == 1,
            "rare": (documents >= 1) & (documents <= 3),
            "few": documents <= 20,
            "medium": (documents > 20) & (documents <= 100),
            "many": documents > 100,
        }
        return {name: masks[name] for name in GROUPS if masks[name].any()}

    @property
    def unsure(self) -> set[str]:
        """Metrics of groups that rest on too few documents for an interval."""
        sizes = {group: (self._support @ mask.astype(float) > 0).sum() for group, mask in self.groups.items()}
        return {f"macro{kind}@{TOP}/{group}" for group, size in sizes.items() for kind in "PRF" if size < FEWEST}

    @cached_property
    def means(self) -> dict[str, Floats]:
        """Metrics that are averaged over documents, (documents,) each."""
        size = self.given.truth.sizes
        found = {k: self._by_document(self.hit, k=k) for k in KS}
        values = {f"P@{k}": found[k] / k for k in KS}
        values |= {f"nDCG@{k}": self._by_document(self.hit, self._discounts, k) / self._ideal(k) for k in KS}
        values |= {f"R@{k}": found[k] / size for k in KS}
        return values | {f"RP@{k}": found[k] / np.minimum(size, k) for k in KS}

    @cached_property
    def ratios(self) -> dict[str, tuple[Floats, Floats]]:
        """Metrics that are a sum over documents divided by another, both (documents,)."""
        truth = self.given.truth
        gains = self.given.weights[self.given.found.values]
        best = self.given.weights[truth.values]
        best = best[np.lexsort((-best, truth.rows))]  # falling within each document
        values = {}
        for k in KS:
            ideal = sums(truth.rows, best * (truth.places < k), self.size)
            values[f"PSP@{k}"] = (self._by_document(self.hit, gains, k), ideal)
        for k in KS:
            ideal = sums(truth.rows, best * discounts(truth.places) * (truth.places < k), self.size)
            above = self._by_document(self.hit, gains * self._discounts, k)
            values[f"PSnDCG@{k}"] = (above / self._ideal(k), ideal / self._ideal(k))
        return values

    @cached_property
    def _discounts(self) -> Floats:
        return discounts(self.given.found.places)

    def _ideal(self, k: int) -> Floats:
        """Sum of discounts that a document could reach, (documents,)."""
        reached = np.concatenate([[0.0], np.cumsum(discounts(np.arange(k)))])
        return reached[np.minimum(self.given.truth.sizes, k)]

    def _by_document(self, chosen: Bools, weights: Floats | None = None, k: int | None = None) -> Floats:
        """Chosen candidates among the first k, counted or weighed, (documents,)."""
        found = self.given.found
        if k is not None:
            chosen = chosen & (found.places < k)
        weighed = chosen.astype(float) if weights is None else chosen * weights
        return sums(found.rows, weighed, self.size)

    def _matrix(self, lists: Lists, chosen: Bools) -> csr_array:
        """Chosen pairs as 1, (documents, supported)."""
        from scipy.sparse import csr_array

        column = np.full(len(self.given.weights), -1)
        column[self.supported] = np.arange(len(self.supported))
        kept = chosen & (column[lists.values] >= 0)
        rows, columns = lists.rows[kept], column[lists.values[kept]]
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(self.size, len(self.supported)))


def discounts(places: Ints) -> Floats:
    return np.asarray(1 / np.log2(places + 2.0))


def sums(rows: Ints, values: Floats, size: int) -> Floats:
    """Values added up by row, (size,)."""
    return np.bincount(rows, values, size).astype(float)


def resamples(size: int, samples: int, seed: int, rows: int) -> Iterator[Floats]:
    """How often each document is drawn, with replacement, in chunks of up to so many rows, (rows, documents)."""
    draws = np.random.default_rng(seed)
    for start in range(0, samples, max(rows, 1)):
        chunk = range(start, min(start + max(rows, 1), samples))
        yield np.stack([np.bincount(draws.integers(size, size=size), minlength=size) for _ in chunk]).astype(float)


class Difference(NamedTuple):
    """One metric of two rows, as fractions; interval and p are nan where it rests on too few documents."""

    metric: str
    reference: float
    value: float
    low: float  # ends of the interval that holds 95 % of the resampled differences, as shifted
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
    """Metrics of a row by name: themselves, and in every resample, (samples,), nan where they are not defined."""

    point: dict[str, float]
    samples: dict[str, Floats]
    unsure: set[str] = field(default_factory=set)  # those that rest on too few documents for an interval

    @classmethod
    def of(cls, measurements: list[Measurement], samples: int, seed: int) -> Resampled:
        """Means over the runs of a row, of the metrics that all of them have."""
        names = [name for name in measurements[0].names if all(name in one.names for one in measurements)]
        points = [dict(zip(one.names, one.point(), strict=True)) for one in measurements]
        drawn = [dict(zip(one.names, one.resampled(samples, seed).T, strict=True)) for one in measurements]
        return cls(
            {name: float(np.mean([point[name] for point in points])) for name in names},
            {name: np.mean([one[name] for one in drawn], axis=0) for name in names},
            set().union(*(one.unsure for one in measurements)),
        )


def differences(reference: Resampled, other: Resampled) -> list[Difference]:
    """Every metric that both have. p is two-sided: twice the share of resamples on the rarer side of 0.

    Resampled differences are first shifted to have the difference itself as their mean. It changes little but for
    macro metrics: resamples lose labels with few test documents, so that all of them lean to one side.

    Resamples in which a metric is not defined are left out, and metrics that rest on too few documents have neither
    interval nor p.

    A resample without any difference counts on both sides, p is 1 at most, and never below 1 / samples: so few
    resamples could not show less.
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
