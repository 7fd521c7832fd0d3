"""One-vs-rest problems of liblinear, each on the documents that decide it."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array, csr_matrix

from zoo.core.extras import missing_extra

SMALL = 8192  # documents up to which a problem has all of them
SHARE = 16  # it also has all of them if it would have more than this part of them, or half after more were added
HARD = 500  # least number of negative documents like the positive ones at the start
RANDOM = 1000  # about the number of other documents at the start, the same for all labels
TOLERANCE = 0.05  # of the margin -1 of negative documents that are left out; liblinear's own is 0.1


class Column(NamedTuple):
    """Sparse classifier of a label."""

    words: np.ndarray  # int32, ascending
    values: np.ndarray  # float32
    bias: float

    def pruned(self, least: float) -> Column:
        kept = (np.abs(self.values) >= least) & (self.values != 0)
        return Column(self.words[kept], self.values[kept], self.bias)


class Problem:
    """Documents (documents, width) in liblinear's format; `options` are those of liblinear."""

    def __init__(self, words: csr_array, options: str) -> None:
        liblinear = library()
        self.size = words.shape[0]
        # Only words that occur: liblinear is faster if the dense weight vector fits into the cache.
        occurs = np.bincount(words.indices, minlength=words.shape[1]) > 0
        self.words = np.flatnonzero(occurs).astype(np.int32)
        words = csr_matrix((words.data, (occurs.cumsum() - 1)[words.indices], words.indptr), (self.size, occurs.sum()))
        self.problem = liblinear.problem(np.ones(self.size), words.astype(np.float64), 1.0)
        self.parameter = liblinear.parameter(options)

    def solve(self, positive: np.ndarray) -> Column:
        """Separate the positive documents (documents,), a mask, from the others."""
        if not 0 < positive.sum() < self.size:  # nothing to separate
            return Column(self.words[:0], np.zeros(0, np.float32), 1.0 if positive.any() else -1.0)
        signs = np.where(positive, 1.0, -1.0)
        self.problem.y = signs.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
        train, free = library().liblinear.train, library().liblinear.free_and_destroy_model
        model = train(self.problem, self.parameter)
        sign = model.contents.label[0]  # class of positive margins
        weights = sign * np.ctypeslib.as_array(model.contents.w, (self.problem.n,))
        free(ctypes.byref(model))
        return Column(self.words, weights[:-1].astype(np.float32), float(weights[-1]))


class OneVsRest:
    """Problems of all labels on the same documents.

    A negative document with a margin of at most -1 has neither loss nor gradient, so the minimum does not change
    without it, and almost all documents are like that: of 45,000 of EURLEX57K, a problem is decided by a few hundred to
    a few thousand. With `active`, a problem starts with the positive documents, the most similar others and some random
    ones, and gets those that violate the margin until there are none.

    Args:
        words: features of the documents, (documents, width).
        labels: 0/1 labels, (documents, num_labels).
        options: options of liblinear.
        prune: weights with a smaller magnitude are dropped.
        active: leave out documents; False gives each problem all of them.
    """

    def __init__(
        self, words: csr_array, labels: csr_array, options: str, prune: float = 0.0, active: bool = True
    ) -> None:
        self.words, self.labels, self.options, self.prune = words, csc_array(labels), options, prune
        self.all = Problem(words, options)  # here, so that forked processes share it
        self.active = active and words.shape[0] > SMALL

    def fit(self, labels: range) -> list[Column]:
        positive = self.labels[:, labels.start : labels.stop].toarray() > 0  # (documents, labels)
        chosen = self._start(positive) if self.active else positive | True
        found: dict[int, Column] = {}
        pending = list(range(len(labels)))
        while pending:
            for label in pending:
                found[label] = self._solve(positive[:, label], chosen[:, label])
            pending = [label for label in pending if not chosen[:, label].all()]
            margins = self._margins([found[label] for label in pending])
            pending = [label for label, column in zip(pending, margins.T, strict=True) if add(chosen[:, label], column)]
        return [found[label].pruned(self.prune) for label in range(len(labels))]

    def _start(self, positive: np.ndarray) -> np.ndarray:
        """Documents of the first problems, (documents, labels)."""
        size, chosen = len(positive), positive.copy()
        chosen[:: max(size // RANDOM, 1)] = True
        likeness = self.words @ (self.words.T @ positive.astype(np.float32))
        likeness[positive] = -1
        for label, count in enumerate(positive.sum(0).tolist()):
            if SHARE * (3 * count + HARD + RANDOM) < size:
                chosen[np.argpartition(-likeness[:, label], max(2 * count, HARD))[: max(2 * count, HARD)], label] = True
            else:
                chosen[:, label] = True
        return chosen

    def _solve(self, positive: np.ndarray, chosen: np.ndarray) -> Column:
        if chosen.all():
            return self.all.solve(positive).pruned(self.prune)  # now: it has a weight for every word
        rows = np.flatnonzero(chosen)
        return Problem(self.words[rows], self.options).solve(positive[rows])

    def _margins(self, columns: list[Column]) -> np.ndarray:
        weights = np.zeros((self.words.shape[1], len(columns)), self.words.dtype)
        for place, column in enumerate(columns):
            weights[column.words, place] = column.values
        margins: np.ndarray = self.words @ weights + np.array([column.bias for column in columns])
        return margins


def add(chosen: np.ndarray, margins: np.ndarray) -> bool:
    """Add documents that violate the margin, the worst first, at most as many as there are; False if none does."""
    margins = np.where(chosen, -np.inf, margins)
    if margins.max() <= -1 + TOLERANCE:
        return False
    worst = np.flatnonzero(margins > -1)
    worst = worst[np.argsort(-margins[worst], kind="stable")[: chosen.sum()]]
    chosen[worst] = True
    if 2 * chosen.sum() > len(chosen):
        chosen[:] = True
    return True


def library() -> Any:
    """Import liblinear, an optional dependency."""
    try:
        from liblinear import liblinear
    except ImportError as error:
        raise missing_extra(error, "linear") from None
    return liblinear
