"""Finished runs read back from their folders, without waiting for torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.errors import UserError, first_line
from datamodules.progress import note

if TYPE_CHECKING:
    import pyarrow as pa

FACTS = ("data", "experiment", "head", "backbone", "seed", "split", "run")  # what runs can be told apart by
COSTS = ("seconds", "parameters", "memory")  # measured beside the metrics; memory in MB
NO_RUNS_INSIDE = {"checkpoints", "wandb"}
SETTINGS, RESULTS = "config.yaml", "metrics.json"


class Run:
    """One run folder.

    Args:
        folder: where it is.
        facts: all of `metrics.json` but the metrics: experiment, data, seed, seconds, ...
        metrics: fractions by name, and counts of labels.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], metrics: dict[str, float]) -> None:
        self.folder, self.facts, self.metrics = folder, facts, metrics

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def name(self) -> str:
        """Experiment and time, which no other run of the same machine has."""
        return f"{self.experiment}/{self.folder.name}"

    @property
    def experiment(self) -> str:
        return str(self.facts.get("experiment") or self.folder.resolve().parent.name)

    @cached_property
    def config_text(self) -> str:
        """`config.yaml`, read when it is asked for; empty where there is none to read."""
        try:
            return (self.folder / SETTINGS).read_text("utf8")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            note(f"{self.folder}: {SETTINGS} cannot be read ({first_line(error)}): its settings count as empty")
            return ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of `config.yaml`, likewise."""
        try:
            return parse_settings(self.config_text)
        except ValueError as error:
            note(f"{self.folder}: {SETTINGS} cannot be read ({first_line(error)}): its settings count as empty")
            return {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings by the keys that overrides have."""
        return flattened(self.config) if self.config else {}

    @property
    def limit_train(self) -> int | None:
        """Training documents that the run was held to; runs from before it was kept tell by their settings."""
        known = "limit_train" in self.facts
        limit = self.facts["limit_train"] if known else self.settings.get("data.limit_train")
        return limit if isinstance(limit, int) else None

    @property
    def is_validation(self) -> bool:
        """Whether the metrics are of validation documents, as in a corpus without test documents."""
        return self.facts.get("split") == "val"

    @property
    def corpus(self) -> str:
        return "sample" if self.facts.get("sample") else str(self.facts.get("data") or "unknown data")

    @property
    def data(self) -> str:
        """Corpus, and what part of it: only runs with the same can be compared."""
        made = self.facts.get("train_documents") if self.facts.get("sample") else None  # samples differ in size
        size = made if isinstance(made, int) else self.limit_train
        part = f", {size:,} documents" if size else ""
        return f"{self.corpus}{part}{', validation' if self.is_validation else ''}"

    def fact(self, key: str) -> Any:
        """One of FACTS; runs from before head and backbone were kept tell them by their settings."""
        if key in ("data", "experiment"):
            return getattr(self, key)
        if key == "run":
            return str(self.folder)
        if key in ("head", "backbone") and key not in self.facts:
            return str(self.settings.get(f"model.{key}", "")).rpartition(".")[2]
        return self.facts.get(key, "")

    def value(self, column: str) -> float | None:
        """A metric, or one of COSTS; None where the run does not have it."""
        if column not in COSTS:
            return self.metrics.get(column)
        found: Any = self.facts.get(column)
        if column == "memory" and isinstance(places := self.facts.get("peak_memory_mb"), dict):
            found = places.get("gpu", places.get("host"))
        unknown = column == "parameters" and found == 0  # as older runs say of linear models
        return float(found) if is_number(found) and not unknown else None

    def predictions(self) -> pa.Table | None:
        """A row for each test document: row, id, truth, labels, scores; None where there is none to read."""
        return self._table("predictions.parquet", ("id", "truth", "labels", "scores"))

    def labels(self) -> pa.Table | None:
        """What the numbers of labels in `predictions` mean: label, text, documents, weight, known."""
        return self._table("labels.parquet", ("label", "documents", "weight"))

    def _table(self, name: str, columns: Sequence[str]) -> pa.Table | None:
        """None where there is no such file, and after a note where it cannot be read or lacks one of the columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(self.folder / name)
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            why = first_line(error)
        else:
            missing = [column for column in columns if column not in table.column_names]
            if not missing:
                return table
            why = f"it has no column {', '.join(missing)}"
        note(f"{self.folder}: {name} cannot be read ({why}): it counts as not there")
        return None


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The finished runs in these folders and below them, each once; others are named and left out."""
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            what = "is a file: give the run folder that it is in" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}")
        found = list(run_folders(path))
        if not found:
            note(f"{path}: no run folders in it")
        for folder in found:
            place = folder.resolve()
            if place in runs:
                continue
            try:
                runs[place] = read_run(folder)
            except (OSError, ValueError) as error:
                note(f"{folder} is left out: {first_line(error)}")
    if not runs:
        raise UserError(f"no finished run in {', '.join(map(str, paths))}: a run ends by writing {RESULTS}")
    return list(runs.values())


def run_folders(path: Path) -> Iterator[Path]:
    """This folder and all below it that hold a run, in order of their names."""
    for folder, inside, files in os.walk(path):
        inside[:] = sorted(set(inside) - NO_RUNS_INSIDE)
        if SETTINGS in files or RESULTS in files:
            yield Path(folder)


def read_run(folder: Path) -> Run:
    """Facts and metrics of a run; a ValueError says what is wrong with them."""
    file = folder / RESULTS
    if not file.is_file():
        raise ValueError(f"unfinished, it has no {RESULTS}")
    try:
        facts = json.loads(file.read_text("utf8"))
    except ValueError as error:
        raise ValueError(f"{RESULTS} is broken: {first_line(error)}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{RESULTS} is no object")
    metrics = facts.pop("metrics", None)
    if not isinstance(metrics, dict) or not metrics:
        raise ValueError(f"{RESULTS} has no metrics")
    for name, value in metrics.items():
        if not is_number(value):
            raise ValueError(f"{RESULTS}: {name} is {value!r}, which is no number")
    return Run(folder, facts, {name: float(value) for name, value in metrics.items()})


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def parse_settings(text: str) -> dict[str, Any]:
    """YAML with sections, or nothing; a ValueError says what is wrong with it."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
    try:
        content = yaml.load(text, loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(first_line(error)) from error
    if not isinstance(content, dict):
        raise ValueError("it has no sections")
    return content


def flattened(settings: Any, place: str = "") -> dict[str, Any]:
    """Settings by dotted keys as in overrides: no `class_path` or `init_args`, stages by their names.

    The key of a class itself has its short name: `model.head` is `Linear`.
    """
    if isinstance(settings, list) and settings and all(isinstance(part, dict) and "name" in part for part in settings):
        settings = {part["name"]: {key: part[key] for key in part if key != "name"} for part in settings}
    found: dict[str, Any] = {}
    if isinstance(settings, list) and any(isinstance(part, dict) and "class_path" in part for part in settings):
        for part in settings:  # such as callbacks: an override sets the last that has the key
            found |= flattened(part, place)
        return found
    if not isinstance(settings, dict) or not settings:
        return {place: settings}
    inner = dict(settings)
    if "class_path" in inner:
        found[place] = str(inner.pop("class_path")).rpartition(".")[2]
        inner |= {**(inner.pop("init_args", None) or {}), **(inner.pop("dict_kwargs", None) or {})}
    for key, value in inner.items():
        found |= flattened(value, f"{place}.{key}" if place else str(key))
    return found
