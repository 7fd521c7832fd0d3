"""F1 of rare labels in several runs on the same test documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zoo.analysis.pairs import TestedRun
from zoo.core.errors import UserError
from zoo.core.metrics import FEW, THRESHOLD


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


@dataclass(frozen=True)
class TailTable:
    """F1 of tail labels in several runs, at a fixed threshold."""

    names: list[str]
    documents: np.ndarray  # (labels,) training documents, in the first run
    values: np.ndarray  # (runs, labels)


def tail_table(runs: Sequence[TestedRun], tail_labels: int) -> TailTable:
    """Compare runs on the `tail_labels` rarest labels of the first (HTTN, Figure 4).

    Labels without test documents are left out. A label is predicted where it scores at least 0.5.
    """
    first = runs[0]
    if any(run.ids != first.ids or not run.is_truth_of(first) for run in runs):
        raise UserError("the runs were tested on different documents or labels: compare runs on the same data")
    documents = first.measurement.given.documents
    by_frequency = np.argsort(-documents, kind="stable")[: int((documents > 0).sum())]
    if not 0 < tail_labels <= len(by_frequency):
        raise UserError(f"`tail_labels={tail_labels}` is not between 1 and the number of labels, {len(by_frequency):,}")
    found = [
        {run.labels[i]: f1 for i, f1 in zip(run.measurement.supported, at_threshold, strict=True)}
        for run, at_threshold in ((run, run.measurement.label_f1(f"{THRESHOLD:g}")) for run in runs)
    ]
    shown = [label for label in by_frequency[-tail_labels:] if first.labels[label] in found[0]]
    names = [first.labels[label] for label in shown]
    return TailTable(names, documents[shown], np.array([[f1[name] for name in names] for f1 in found]))
