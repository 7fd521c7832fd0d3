"""F1 of rare labels in two runs on the same test documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.results import Run

if TYPE_CHECKING:
    import pyarrow as pa

TOP = 5  # candidates of a document that count
FEW = 20  # training documents of a tail label at most


@dataclass(frozen=True)
class LabelScores:
    """Of all labels of a run."""

    ids: list[str]  # of the test documents, in order
    names: list[str]
    documents: np.ndarray  # training documents
    support: np.ndarray  # test documents
    f1: np.ndarray


@dataclass(frozen=True)
class TailPair:
    """Labels that are rare in both runs and occur in the test documents of both."""

    names: list[str]
    documents: np.ndarray
    one: np.ndarray
    other: np.ndarray


def label_scores(run: Run) -> LabelScores | None:
    """2 hits / (predicted + true) of each label over the first five candidates, as in `macroF@5`."""
    predictions, labels = run.predictions(), run.labels()
    if predictions is None or labels is None:
        return None
    truth, found = (lists(predictions[name]) for name in ("truth", "labels"))
    counted = np.isin(found.rows, truth.rows) & (found.places < TOP)  # a document without labels counts nowhere
    rows, guesses = found.rows[counted], found.values[counted]
    size = len(labels)
    hits = np.isin(rows * size + guesses, truth.rows * size + truth.values)
    support = np.bincount(truth.values, minlength=size)
    total = np.bincount(guesses, minlength=size) + support
    f1 = 2 * np.bincount(guesses[hits], minlength=size) / np.maximum(total, 1)
    ids = sorted(predictions["id"].to_pylist())
    return LabelScores(ids, labels["label"].to_pylist(), labels["documents"].to_numpy(), support, f1)


def tail_pair(one: LabelScores, other: LabelScores) -> TailPair:
    """Labels are matched by their names; the documents are those of the first run."""
    places = {name: place for place, name in enumerate(other.names)}

    def is_tail(scores: LabelScores, place: int) -> bool:
        return bool(0 < scores.documents[place] <= FEW and scores.support[place])

    pairs = [(mine, places[name]) for mine, name in enumerate(one.names) if name in places]
    kept = [(mine, theirs) for mine, theirs in pairs if is_tail(one, mine) and is_tail(other, theirs)]
    mine, theirs = np.array(kept, dtype=np.int64).reshape(-1, 2).T
    return TailPair([one.names[place] for place in mine], one.documents[mine], one.f1[mine], other.f1[theirs])


@dataclass(frozen=True)
class Flat:
    """Values of all lists, with the list that each is in and its place there."""

    values: np.ndarray
    rows: np.ndarray
    places: np.ndarray


def lists(column: pa.ChunkedArray) -> Flat:
    combined: Any = column.combine_chunks()
    sizes = combined.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    values = combined.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return Flat(values, np.repeat(np.arange(len(sizes)), sizes), places)
