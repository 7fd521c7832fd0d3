"""F1 of rare labels in two runs on the same test documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zoo.analysis.pairs import TestedRun
from zoo.core.metrics import FEW


@dataclass(frozen=True)
class TailPair:
    """F1@5 of labels that are rare in both runs and occur in the test documents of both."""

    names: list[str]
    documents: np.ndarray  # training documents, in the first run
    one: np.ndarray
    other: np.ndarray


def tail_pair(one: TestedRun, other: TestedRun) -> TailPair:
    """Match rare labels of two runs by their names."""
    mine, theirs = tail_scores(one), tail_scores(other)
    names = [name for name in mine if name in theirs]
    documents = np.array([mine[name][0] for name in names], dtype=np.int64)
    scores = ([found[name][1] for name in names] for found in (mine, theirs))
    return TailPair(names, documents, *(np.array(values, dtype=float) for values in scores))


def tail_scores(tested: TestedRun) -> dict[str, tuple[int, float]]:
    """Number of training documents and F1@5 of each rare label, by name."""
    measurement = tested.measurement
    documents = measurement.given.documents[measurement.supported]
    rows = zip(measurement.supported.tolist(), documents.tolist(), measurement.label_f1().tolist(), strict=True)
    return {tested.labels[label]: (count, f1) for label, count, f1 in rows if 0 < count <= FEW}
