"""Comparison of rows with a reference row on the same test documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.analysis.comparison import ComparedRuns, Comparison, DataTable
from zoo.analysis.significance import Difference, Measurement, Predictions, Resampled, differences
from zoo.core.console import note, progress_bar
from zoo.core.errors import UserError, did_you_mean
from zoo.core.ragged import Lists
from zoo.core.run_folder import LABELS, PREDICTIONS, RunFolder

GRID = 1000  # tuned thresholds are multiples of 1 / GRID, rounded to single precision in `metrics.json`


@dataclass
class Pair:
    """Differences between two rows on the same data."""

    data: str
    reference: str
    other: str
    differences: list[Difference]


@dataclass
class TestedRun:
    """The test of a run, with documents in order of their ids."""

    run: RunFolder
    ids: list[str]
    labels: list[str]  # names by index
    measurement: Measurement

    @property
    def truth(self) -> Lists:
        return self.measurement.given.truth

    def is_truth_of(self, other: TestedRun) -> bool:
        """Whether the documents have the same labels by name; label indices may differ."""
        if not np.array_equal(self.truth.sizes, other.truth.sizes):
            return False
        index = {name: i for i, name in enumerate(other.labels)}
        translated = np.array([index.get(name, -1) for name in self.labels])[self.truth.values]
        pairs = [(self.truth.rows, translated), (other.truth.rows, other.truth.values)]
        mine, theirs = (np.sort(rows * len(other.labels) + labels) for rows, labels in pairs)
        return bool((translated >= 0).all()) and np.array_equal(mine, theirs)


def compare_pairs(
    comparison: Comparison, against: str | None, samples: int, seed: int, metrics: Sequence[str] | None = None
) -> list[Pair]:
    """Compare all rows with the first row on the same data, or with `against`; in all metrics by default."""
    names = list(dict.fromkeys(row.name for part in comparison.parts for row in part.rows))
    if against is not None and against not in names:
        raise UserError(f"`against={against}`: no such row; {did_you_mean(against, names)}")
    if all(len(part.rows) < 2 for part in comparison.parts):
        raise UserError("`significance` needs two rows on the same data; group runs with `by`")
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
            raise UserError("`columns`: none of them can be tested; `significance` needs metrics such as P@1 and PSP@5")
    if not pairs:
        raise UserError("`significance` needs two rows whose predictions on the same data can be compared")
    return pairs


def pairs_of(part: DataTable, against: str | None, samples: int, seed: int) -> list[Pair]:
    reference = next((row for row in part.rows if against in (None, row.name)), None)
    if reference is None or len(part.rows) == 1:
        note(f"{part.data}: {f'no row {against!r}' if reference is None else 'a single row'}, nothing to compare")
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


def tested_runs(row: ComparedRuns) -> Iterator[TestedRun]:
    """Runs with stored predictions; a note names the others."""
    for run in row.runs:
        if (tested := read_tested(run)) is not None:
            yield tested
        elif missing := [name for name in (PREDICTIONS, LABELS) if not (run.path / name).exists()]:
            note(f"{run.path} is left out: it has no {' and '.join(missing)}")
        elif run.predictions is not None and run.labels is not None:  # otherwise the run has noted an unreadable file
            note(f"{run.path} is left out: none of its test documents has a label")


def row_resampled(runs: Iterable[TestedRun], first: TestedRun, samples: int, seed: int) -> Resampled | None:
    """Resample the runs that were tested on the documents of `first`; a note names the others."""
    found = []
    for tested in runs:
        run = tested.run
        if tested.ids != first.ids:
            note(f"{run.path} is left out: its test documents differ from those of {first.run.path}")
        elif not tested.is_truth_of(first):
            note(f"{run.path} is left out: the labels of its test documents differ from those of {first.run.path}")
        else:
            found.append(tested.measurement)
    return Resampled.of(found, samples, seed) if found else None


def read_tested(run: RunFolder) -> TestedRun | None:
    """The stored test of a run; None if it has none, or none with labelled documents."""
    import pyarrow.compute as pc

    documents, labels = run.predictions, run.labels
    if documents is None or labels is None:
        return None
    documents = documents.take(pc.sort_indices(documents["id"]))
    predictions = Predictions(
        Lists.of_column(documents["truth"]),
        Lists.of_column(documents["labels"]),
        pc.list_flatten(documents["scores"]).to_numpy().astype(float),
        labels["documents"].to_numpy(),
        labels["weight"].to_numpy(),
        exact_threshold(run.metrics.get("threshold", 0.5)),
    )
    measurement = Measurement(predictions)
    if not measurement.size:
        return None
    return TestedRun(run, documents["id"].to_pylist(), labels["label"].to_pylist(), measurement)


def exact_threshold(threshold: float) -> float:
    """Undo the rounding of a tuned threshold, which would change the side of scores close to it."""
    tuned = round(threshold * GRID) / GRID
    return tuned if np.float32(tuned) == np.float32(threshold) else threshold
