"""Tables and figures of papers: the runs that make them, and their layout.

A file such as experiments/papers/httn/table2.yaml has the rows of one table. Each row is an experiment, as in other
experiment files, on top of `common`, which all rows share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.analysis.comparison import read_papers
from zoo.core.errors import UserError, did_you_mean
from zoo.core.settings import read_yaml
from zoo.core.shipped import shipped_folder

ELEMENT = re.compile(r"(table|figure)(\d+)\w*")
KEYS = ("paper", "corpus", "columns", "rows", "common", "x")
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Start:
    """Where a row starts: at `stage`, with the weights that another row had after the stage `after`."""

    row: str
    after: str
    stage: str


@dataclass(frozen=True)
class Row:
    """A row of a table, or a point of a figure.

    Args:
        name: as in `published.csv`, or a number on the x axis of a figure.
        experiment: sections and dotted keys; paths are absolute.
        start: None to train from scratch.
    """

    name: str
    experiment: dict[str, Any]
    start: Start | None


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper.

    Args:
        name: folder and name of the file, such as `httn table2`.
        title: leading comment of the file.
        paper: as in `published.csv`.
        corpus: as in `published.csv`.
        columns: metrics.
        rows: by name.
        x: label of the x axis of a figure; None for a table.
    """

    name: str
    title: str
    paper: str
    corpus: str
    columns: list[str]
    rows: dict[str, Row]
    x: str | None

    @property
    def number(self) -> str:
        match = ELEMENT.fullmatch(self.element)
        assert match
        return match[2]

    @property
    def element(self) -> str:
        return self.name.split()[-1]

    @property
    def is_figure(self) -> bool:
        return self.element.startswith("figure")

    def printed(self) -> dict[str, dict[str, str]]:
        """Published values in %, by row and column; figures print none."""
        if self.is_figure:
            return {}
        return {
            paper.method: paper.values
            for paper in read_papers(self.corpus)
            if paper.source.startswith(f"{self.paper}, Table") and self.number in re.findall(r"\d+", paper.source)
        }


def table_files() -> dict[str, Path]:
    """All tables and figures by name, such as `httn table2`."""
    files = sorted((shipped_folder() / "papers").glob("*/*.yaml"))
    return {f"{file.parent.name} {file.stem}": file for file in files if ELEMENT.fullmatch(file.stem)}


def find_table(paper: str, element: str) -> PaperTable:
    name, files = f"{paper} {element}", table_files()
    if name not in files:
        raise UserError(f"no table or figure `{name}`; {did_you_mean(name, list(files))}; `list` shows all")
    return read_table(name, files[name])


def read_table(name: str, file: Path) -> PaperTable:
    content = read_yaml(file)
    if not isinstance(content, dict) or not {"paper", "corpus", "columns", "rows"} <= content.keys():
        raise UserError(f"{file}: expected `paper`, `corpus`, `columns` and `rows`")
    if unknown := [key for key in content if key not in KEYS]:
        raise UserError(f"{file}: unknown key {unknown[0]!r}; {did_you_mean(str(unknown[0]), KEYS)}")
    common = content.get("common") or {}
    rows = {str(row): read_row(file, str(row), {**common, **(own or {})}) for row, own in content["rows"].items()}
    for row in rows.values():
        if row.start and row.start.row not in list(rows)[: list(rows).index(row.name)]:
            raise UserError(f"{file}: row {row.name!r} starts from {row.start.row!r}, which is not an earlier row")
    title = " ".join(line.lstrip("# ") for line in file.read_text("utf8").splitlines() if line.startswith("#"))
    return PaperTable(name, title, content["paper"], content["corpus"], content["columns"], rows, content.get("x"))


def read_row(file: Path, name: str, content: Mapping[str, Any]) -> Row:
    start = content.get("start")
    try:
        begins = None if start is None else Start(**{key: str(value) for key, value in start.items()})
    except TypeError:
        raise UserError(f"{file}: `start` of {name!r} needs `row`, `after` and `stage`") from None
    experiment = {key: absolute(file, value) for key, value in content.items() if key != "start"}
    return Row(name, experiment, begins)


def absolute(file: Path, value: Any) -> Any:
    """Make the path of a YAML file absolute, which is relative to `file`."""
    is_path = isinstance(value, str) and value.endswith(SUFFIXES)
    return str((file.parent / value).resolve()) if is_path else value
