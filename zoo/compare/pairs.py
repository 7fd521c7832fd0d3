"""Rows of runs held against a reference on the same test documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datamodules.errors import UserError
from datamodules.progress import note, progress_bar
from zoo.compare.comparison import Comparison, Part, Row, suggestion
from zoo.compare.significance import Difference, Lists, Measurement, Predictions, Resampled, differences
from zoo.results import Run

GRID = 1000  # tuned thresholds are multiples of 1 / GRID, and `metrics.json` has rounded them to single precision


@dataclass
class Pair:
    """Two rows on the same data."""

    data: str
    reference: str
    other: str
    differences: list[Difference]


@dataclass
class Tested:
    """The test documents of a run, in order of their ids."""

    run: Run
    ids: list[str]
    labels: list[str]  # names by number
    measurement: Measurement

    @property
    def truth(self) -> Lists:
        return self.measurement.given.truth

    def is_truth_of(self, other: Tested) -> bool:
        """Whether the documents have labels of the same names; numbers of labels may differ."""
        if not np.array_equal(self.truth.sizes, other.truth.sizes):
            return False
        numbers = {name: number for number, name in enumerate(other.labels)}
        translated = np.array([numbers.get(name, -1) for name in self.labels])[self.truth.values]
        pairs = [(self.truth.rows, translated), (other.truth.rows, other.truth.values)]
        mine, theirs = (np.sort(rows * len(other.labels) + labels) for rows, labels in pairs)
        return bool((translated >= 0).all()) and np.array_equal(mine, theirs)


def compare_pairs(
    comparison: Comparison, against: str | None, samples: int, seed: int, metrics: Sequence[str] | None = None
) -> list[Pair]:
    """Every row against the first of its data, or the one that is called `against`; in some metrics, or all."""
    names = list(dict.fromkeys(row.name for part in comparison.parts for row in part.rows))
    if against is not None and against not in names:
        raise UserError(f"--against: there is no row {against!r}; {suggestion(against, names)}")
    if all(len(part.rows) < 2 for part in comparison.parts):
        raise UserError("--significance needs two rows on the same data; --by says what tells rows apart")
    pairs = []
    with progress_bar("Resampling") as bar:
        advance = bar(sum(len(row.runs) for part in comparison.parts for row in part.rows))
        for part in comparison.parts:
            pairs += pairs_of(part, against, samples, seed)
            advance(sum(len(row.runs) for row in part.rows))
    if metrics is not None:
        for pair in pairs:
            pair.differences = [one for one in pair.differences if one.metric in metrics]
        if pairs and not any(pair.differences for pair in pairs):
            raise UserError("--columns: predictions tell nothing of these; --significance can do P@1, PSP@5, ...")
    if not pairs:
        raise UserError("--significance needs two rows on the same data whose predictions can be compared")
    return pairs


def pairs_of(part: Part, against: str | None, samples: int, seed: int) -> list[Pair]:
    reference = next((row for row in part.rows if against in (None, row.name)), None)
    if reference is None or len(part.rows) == 1:
        why = f"no row {against!r}" if reference is None else "one row only"
        note(f"{part.data}: {why}, nothing to compare with")
        return []
    own = list(tested_runs(reference))
    if not own:
        return []
    others = [
        (row, row_resampled(tested_runs(row), own[0], samples, seed)) for row in part.rows if row is not reference
    ]
    found = [(row, other) for row, other in others if other is not None]
    measured = row_resampled(own, own[0], samples, seed) if found else None
    if measured is None:
        return []
    return [Pair(part.data, reference.name, row.name, differences(measured, other)) for row, other in found]


def tested_runs(row: Row) -> Iterator[Tested]:
    """Those that have kept their test; each of the others is read, and told, once."""
    return (tested for run in row.runs if (tested := read_tested(run)) is not None)


def row_resampled(runs: Iterable[Tested], first: Tested, samples: int, seed: int) -> Resampled | None:
    """Over the runs that were tested on the documents of `first`; others are named and left out."""
    found = []
    for tested in runs:
        run = tested.run
        if tested.ids != first.ids:
            note(f"{run.folder} is left out: its test documents are not those of {first.run.folder}")
        elif not tested.is_truth_of(first):
            note(f"{run.folder} is left out: its test documents have other labels than those of {first.run.folder}")
        else:
            found.append(tested.measurement)
    return Resampled.of(found, samples, seed) if found else None


def read_tested(run: Run) -> Tested | None:
    """What the run has kept of its test; None, after a note, where it has not."""
    import pyarrow.compute as pc

    documents, labels = run.predictions(), run.labels()
    if documents is None or labels is None:
        missing = [name for name in ("predictions.parquet", "labels.parquet") if not (run.folder / name).exists()]
        if missing:  # else `run` has told that one cannot be read
            note(f"{run.folder} is left out: it has no {' and '.join(missing)}")
        return None
    documents = documents.take(pc.sort_indices(documents["id"]))
    weights = labels["weight"].to_numpy()
    predictions = Predictions(
        lists(documents["truth"]),
        lists(documents["labels"]),
        pc.list_flatten(documents["scores"]).to_numpy().astype(float),
        labels["documents"].to_numpy(),
        weights,
        exact_threshold(run.metrics.get("threshold", 0.5)),
    )
    measurement = Measurement(predictions)
    if not measurement.size:
        note(f"{run.folder} is left out: none of its test documents has a label")
        return None
    return Tested(run, documents["id"].to_pylist(), labels["label"].to_pylist(), measurement)


def lists(column: Any) -> Lists:
    """A column of lists."""
    import pyarrow.compute as pc

    sizes, values = pc.list_value_length(column).to_numpy(), pc.list_flatten(column).to_numpy()
    return Lists(sizes.astype(np.int64), values.astype(np.int64))


def exact_threshold(threshold: float) -> float:
    """As it was tuned: a score between it and its rounding must not change sides."""
    tuned = round(threshold * GRID) / GRID
    return tuned if np.float32(tuned) == np.float32(threshold) else threshold
