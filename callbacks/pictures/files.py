"""What a run folder holds for pictures, as far as it is there and can be read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import numpy as np

from datamodules.errors import first_line

if TYPE_CHECKING:
    from callbacks.evidence import Evidence


@dataclass(frozen=True)
class RunFiles:
    """Content of the files of a run; empty where there is none."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[Mapping[str, str]] = ()  # of metrics.csv
    stages: Sequence[str] = ()  # names in the configuration
    names: Sequence[str] = ()  # of labels, those unseen in training last
    texts: Sequence[str] = ()  # what labels mean, "" where nobody has said it
    documents: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # in training, of each label
    evidence: Evidence | None = None
    broken: Sequence[str] = ()  # files that cannot be read, each with the reason

    @property
    def titles(self) -> list[str]:
        """Names of labels, with their texts where these say more."""
        pairs = zip(self.names, self.texts, strict=True)
        return [f"{name}: {text}" if text and text.lower() != name.lower() else name for name, text in pairs]

    @classmethod
    def read(cls, folder: Path) -> RunFiles:
        """Missing files are nothing to speak of; `broken` names those that are there and cannot be read."""
        broken: list[str] = []

        def attempt(name: str, read: Callable[[Path], Any]) -> Any:
            if not (folder / name).is_file():
                return None
            try:
                return read(folder / name)
            except Exception as error:  # of json, csv, zip, arrow, or of a file from another version
                broken.append(f"{name} cannot be read ({first_line(error)})")
                return None

        labels = attempt("labels.parquet", read_labels) or {}
        evidence = attempt("evidence.npz", read_evidence)
        if evidence is not None and not fits(evidence, len(labels.get("documents", ()))):
            if labels:
                broken.append("evidence.npz is about other labels than labels.parquet")
            elif not broken:  # `broken` tells already that labels.parquet cannot be read
                broken.append("evidence.npz needs labels.parquet, which is missing")
            evidence = None
        return cls(
            metrics=attempt("metrics.json", read_metrics) or {},
            rows=attempt("metrics.csv", read_rows) or (),
            stages=attempt("config.yaml", read_stages) or (),
            evidence=evidence,
            broken=tuple(broken),
            **labels,
        )


def read_labels(file: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(file, columns=["label", "text", "documents"])
    return {
        "names": table["label"].to_pylist(),
        "texts": table["text"].to_pylist(),
        "documents": table["documents"].to_numpy(),
    }


def read_evidence(file: Path) -> Evidence | None:
    from callbacks.evidence import Evidence

    if not is_zipfile(file):
        raise ValueError("not a whole npz file")
    return Evidence.load(file.parent)


def read_metrics(file: Path) -> dict[str, float]:
    return {name: float(value) for name, value in json.loads(file.read_text("utf8"))["metrics"].items()}


def read_rows(file: Path) -> list[dict[str, str]]:
    """A kill may have cut off the last line."""
    with file.open(encoding="utf8", errors="replace", newline="") as lines:
        return [row for row in csv.DictReader(lines) if None not in row and None not in row.values()]


def read_stages(file: Path) -> list[str]:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [str(stage["name"]) for stage in yaml.load(file.read_text("utf8"), loader).get("stages") or []]


def fits(evidence: Evidence, size: int) -> bool:
    """Whether all labels that the evidence is about are among `size` labels."""
    numbers = [*(() if evidence.correlated is None else evidence.correlated)]
    numbers += [] if evidence.points is None else evidence.points.labels.tolist()
    numbers += [label for example in evidence.examples for label in (*example.truth, *example.found)]
    return all(0 <= number < size for number in numbers) and (evidence.norms is None or len(evidence.norms) <= size)
