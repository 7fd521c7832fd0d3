"""The run folder: names, readers and writers of its files. Imports no torch."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

import numpy as np

from zoo.core.console import note
from zoo.core.csv_log import read_log, write_log
from zoo.core.errors import first_line
from zoo.core.files import atomic_write
from zoo.core.metrics import COSTS, RANKING_METRICS
from zoo.core.ragged import Lists, distinct_pairs
from zoo.core.settings import flattened, parse_yaml

if TYPE_CHECKING:
    import pyarrow as pa

CONFIG = "config.yaml"
RESULTS = "metrics.json"  # written last; a run without it is unfinished
LOG = "metrics.csv"
PREDICTIONS = "predictions.parquet"
LABELS = "labels.parquet"
EVIDENCE = "evidence.npz"
CHECKPOINTS = "checkpoints"
MAX_RESULTS, MAX_EVIDENCE = 2**26, 2**31  # bytes; larger files are not of a run
ROUNDING = 1e-6  # of metrics, which are means in single precision
TEXT_COLUMNS = {"id", "label", "text"}
FACTS = ("data", "experiment", "head", "backbone", "seed", "split", "run")  # keys that runs can be grouped by


class RunFolder:
    """A run folder; missing or unreadable files count as empty.

    Args:
        path: the folder.
        facts: `metrics.json` without the metrics: experiment, data, seed, seconds, ...
        metrics: metrics in [0, 1] by name, and sizes of label groups.
    """

    def __init__(
        self, path: Path, facts: dict[str, Any] | None = None, metrics: dict[str, float] | None = None
    ) -> None:
        self.path, self.facts, self.metrics = path, facts or {}, metrics or {}

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """Read a finished run; raises ValueError if `metrics.json` is missing or invalid."""
        file = path / RESULTS
        if not file.is_file():
            raise ValueError(f"unfinished, it has no {RESULTS}")
        if file.stat().st_size > MAX_RESULTS:
            raise ValueError(f"{RESULTS} is larger than {MAX_RESULTS:,} bytes")
        try:
            facts = json.loads(own_file(path, RESULTS).read_text("utf8"))
            json.dumps(facts, ensure_ascii=False).encode()  # fails if a text has a lone surrogate
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{RESULTS} is not valid JSON: {first_line(error)}") from error
        metrics = facts.pop("metrics", None) if isinstance(facts, dict) else None
        if not isinstance(metrics, dict) or not metrics:
            raise ValueError(f"{RESULTS} has no metrics")
        for name, value in metrics.items():
            if not is_number(value):
                raise ValueError(f"{RESULTS}: {name} is {value!r}, not a number")
            if name.rpartition("/")[2].partition("@")[0] in RANKING_METRICS and not 0 <= value <= 1 + ROUNDING:
                raise ValueError(f"{RESULTS}: {name} is {value!r}, not from 0 to 1")
        return cls(path, facts, {name: float(value) for name, value in metrics.items()})

    @property
    def is_finished(self) -> bool:
        return (self.path / RESULTS).is_file()

    @property
    def last_checkpoint(self) -> Path:
        return self.path / CHECKPOINTS / "last.ckpt"

    @property
    def name(self) -> str:
        """Experiment and start time, unique on a machine."""
        return f"{self.experiment}/{self.path.name}"

    @property
    def experiment(self) -> str:
        return str(self.facts.get("experiment") or self.path.resolve().parent.name)

    @property
    def limit_train(self) -> int | None:
        """Maximum number of training documents, if the run had one."""
        limit = self.facts.get("limit_train")
        return limit if isinstance(limit, int) else None

    @property
    def is_validation(self) -> bool:
        """Whether the metrics are of validation documents, for a corpus without test documents."""
        return self.facts.get("split") == "val"

    @property
    def partial(self) -> list[str]:
        """Why the metrics are not a result, such as `fast_dev_run`; empty if they are."""
        reasons = self.facts.get("partial")
        return [str(reason) for reason in reasons] if isinstance(reasons, list) else []

    @property
    def corpus(self) -> str:
        return "sample" if self.facts.get("sample") else str(self.facts.get("data") or "unknown data")

    @property
    def data(self) -> str:
        """Corpus, size and split; only runs with the same value are comparable."""
        generated = self.facts.get("train_documents") if self.facts.get("sample") else None  # samples vary in size
        size = generated if isinstance(generated, int) else self.limit_train
        part = f", {size:,} documents" if size else ""
        return f"{self.corpus}{part}{', validation' if self.is_validation else ''}"

    def fact(self, key: str) -> Any:
        """Value of one of FACTS."""
        if key in ("data", "experiment"):
            return getattr(self, key)
        return str(self.path) if key == "run" else self.facts.get(key, "")

    def value(self, column: str) -> float | None:
        """A metric or one of COSTS; None if the run does not have it."""
        if column not in COSTS:
            return self.metrics.get(column)
        found: Any = self.facts.get(column)
        if column == "memory" and isinstance(peak := self.facts.get("peak_memory_mb"), dict):
            found = peak.get("gpu", peak.get("host"))
        return float(found) if is_number(found) else None

    @property
    def importances(self) -> dict[str, float]:
        """Share of each feature in the gain of a ranker's trees; empty without such a ranker."""
        found = self.facts.get("importances")
        if not isinstance(found, dict):
            return {}
        numbers = {str(name): share for name, share in found.items() if isinstance(share, int | float)}
        return {name: float(share) for name, share in numbers.items() if 0 <= share <= 1}

    def write_results(self, facts: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        self.facts, self.metrics = dict(facts), dict(metrics)
        self._write_text(RESULTS, json.dumps(self.facts | {"metrics": self.metrics}, indent=2) + "\n")

    @cached_property
    def config_text(self) -> str:
        try:
            return own_file(self.path, CONFIG).read_text("utf8")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            self._note_unreadable(CONFIG, error)
            return ""

    @cached_property
    def config(self) -> dict[str, Any]:
        try:
            content = parse_yaml(self.config_text) or {}
            if not isinstance(content, dict):
                raise ValueError("it has no sections")
            return content
        except ValueError as error:
            self._note_unreadable(CONFIG, error)
            return {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted keys, as in overrides."""
        return flattened(self.config) if self.config else {}

    @property
    def stages(self) -> list[dict[str, Any]]:
        """Training stages of the configuration."""
        stages = self.config.get("stages")
        return [stage for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []

    def write_config(self, text: str) -> None:
        self._write_text(CONFIG, text)

    @property
    def log_rows(self) -> list[dict[str, str]]:
        """Rows of `metrics.csv`; not cached, as the run may still be writing."""
        try:
            return read_log(own_file(self.path, LOG))[1]
        except OSError as error:
            self._note_unreadable(LOG, error)
            return []

    def validations(self, metric: str) -> list[tuple[int, float]]:
        """Stage and value of each finite validation result, in order."""
        stage, found = 0, []
        for row in self.log_rows:
            if entered := row.get("stage"):
                stage = int(float(entered))
            value = float(row.get(metric) or math.nan)
            if math.isfinite(value):
                found.append((stage, value))
        return found

    def drop_log_rows_after(self, step: int) -> None:
        """Remove rows that a killed run has logged after the checkpoint that it resumes from."""
        columns, rows = read_log(self.path / LOG)
        if columns:
            tests = [name for name in columns if name.startswith("test/")]  # logged again at the end of the run
            kept = [row for row in rows if float(row["step"]) <= step and not any(row[name] for name in tests)]
            write_log(self.path / LOG, columns, kept)

    @cached_property
    def predictions(self) -> pa.Table | None:
        """One row for each test document: row, id, truth, labels, scores."""
        return self._read_table(PREDICTIONS, ("row", "id", "truth", "labels", "scores"), self._check_predictions)

    @cached_property
    def labels(self) -> pa.Table | None:
        """One row for each label index in `predictions`: label, text, documents, weight, known."""
        return self._read_table(LABELS, ("label", "text", "documents", "weight"), self._check_labels)

    @property
    def label_names(self) -> list[str]:
        """Names by label index; labels without training documents come last."""
        return [] if self.labels is None else list(self.labels["label"].to_pylist())

    @property
    def label_texts(self) -> list[str]:
        """Descriptions by label index, "" if there is none."""
        return [] if self.labels is None else list(self.labels["text"].to_pylist())

    @property
    def label_documents(self) -> np.ndarray:
        """Number of training documents of each label."""
        return np.zeros(0, dtype=np.int64) if self.labels is None else np.asarray(self.labels["documents"].to_numpy())

    def write_predictions(self, predictions: pa.Table, labels: pa.Table) -> None:
        import pyarrow.parquet as pq

        for name, table in ((PREDICTIONS, predictions), (LABELS, labels)):
            with atomic_write(self.path / name) as temporary:
                pq.write_table(table, temporary, compression="zstd")

    def read_evidence(self) -> dict[str, np.ndarray] | None:
        """Arrays of `evidence.npz`; `zoo.analysis.evidence` interprets them."""
        file = self.path / EVIDENCE
        if not file.is_file():
            return None
        try:
            if not is_zipfile(file):
                raise ValueError("not a complete npz file")
            with ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist())
            if size > MAX_EVIDENCE:
                raise ValueError(f"it unpacks to {size:,} bytes")
            with np.load(own_file(self.path, EVIDENCE), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except Exception as error:  # of zip, zlib or numpy
            self._note_unreadable(EVIDENCE, error)
            return None

    def write_evidence(self, arrays: Mapping[str, np.ndarray]) -> None:
        with atomic_write(self.path / EVIDENCE) as temporary:
            np.savez_compressed(temporary, allow_pickle=False, **arrays)

    def _check_predictions(self, table: pa.Table) -> None:
        """Refuse lists of other lengths than their scores, and label numbers that `labels` does not have."""
        truth, found, scores = (Lists.of_column(table[name]) for name in ("truth", "labels", "scores"))
        if not np.array_equal(found.sizes, scores.sizes):
            raise ValueError("`labels` and `scores` differ in length")
        if not np.isfinite(scores.values).all():
            raise ValueError("`scores` are not finite")
        for name, lists in (("truth", truth), ("labels", found)):
            if lists.values.dtype.kind not in "iu":
                raise ValueError(f"`{name}` are not label numbers")
            highest = np.inf if self.labels is None else len(self.labels) - 1
            if len(lists.values) and not 0 <= lists.values.min() <= lists.values.max() <= highest:
                raise ValueError(f"`{name}` has numbers that {LABELS} does not have")
            if len(distinct_pairs(lists.rows, lists.values.astype(np.int64))[0]) < len(lists.values):
                raise ValueError(f"`{name}` has a label twice in a document")

    def _check_labels(self, table: pa.Table) -> None:
        documents, weights = (table[name].to_numpy() for name in ("documents", "weight"))
        if documents.dtype.kind not in "iu" or (documents < 0).any():
            raise ValueError("`documents` are not numbers of documents")
        if not (np.isfinite(weights) & (weights > 0)).all():
            raise ValueError("`weight` has values that are not above 0")

    def _read_table(self, name: str, columns: Sequence[str], check: Callable[[pa.Table], None]) -> pa.Table | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(own_file(self.path, name))
            if missing := [column for column in columns if column not in table.column_names]:
                raise OSError(f"it has no column {', '.join(missing)}")
            for column in columns:
                check_whole(table[column])
            for name_of_text in TEXT_COLUMNS & set(columns):
                if not pa.types.is_string(table[name_of_text].type):
                    raise ValueError(f"`{name_of_text}` has no texts")
            check(table)
            return table
        except FileNotFoundError:
            return None
        except (
            OSError,
            pa.ArrowException,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:  # of columns of other types
            self._note_unreadable(name, error)
            return None

    def _note_unreadable(self, name: str, error: Exception) -> None:
        note(f"{self.path}: {name} cannot be read ({first_line(error)}) and is ignored")

    def _write_text(self, name: str, text: str) -> None:
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, "utf8")


def own_file(folder: Path, name: str) -> Path:
    """Path of a file in a run folder; raises OSError if it is a link out of the folder."""
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise OSError(f"{name} is a link out of the folder")
    return folder / name


def check_whole(column: pa.ChunkedArray) -> None:
    """Refuse a column with empty cells, or with lists that have empty items."""
    items = column.combine_chunks()
    if items.null_count or (hasattr(items, "values") and items.values.null_count):
        raise ValueError("it has empty cells")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
