"""Groups runs into rows, with means and standard deviations, next to published results."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from zoo.core.console import note
from zoo.core.errors import UserError, did_you_mean, printable
from zoo.core.metrics import COSTS, HEADLINE_METRICS, is_better_when_higher
from zoo.core.run_folder import FACTS, RunFolder

SHOWN = (*HEADLINE_METRICS, "macroF@5/few", "macroF@5/all", "microF1@tuned", *COSTS)
PUBLISHED = Path(__file__).with_name("published.csv")
NO_THRESHOLD = {"microF1": "microF1@0.5", "macroF1": "macroF1@0.5"}  # the threshold that papers mean by default
MAX_KEYS = 5  # in a note
MAX_NOTES = 3  # about rows that mix runs; more are summarized in one line
# Settings and sections in which repetitions of a run may differ.
REPEATED = {
    *("seed_everything", "name", "runs", "ckpt", "ckpt_path", "final_test", "wandb", "last"),
    *("trainer.logger", "trainer.default_root_dir", "trainer.devices", "trainer.num_nodes", "trainer.accelerator"),
    *("trainer.strategy", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.log_every_n_steps"),
    *("data.cache_dir", "data.root", "data.download", "data.num_workers", "best.dirpath"),
}
REPEATED_LINE = re.compile(r"^(seed_everything|name|runs): \S+$", re.MULTILINE)


class Value(NamedTuple):
    """Mean and standard deviation over the runs of a row; a single run has no deviation."""

    mean: float
    deviation: float | None


@dataclass
class ComparedRuns:
    """A row: runs with the same values of the keys."""

    keys: dict[str, str]  # values as shown
    runs: list[RunFolder] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join([value for key, value in self.keys.items() if key != "data"]) or self.keys["data"]

    def value(self, column: str) -> Value | None:
        found = [value for run in self.runs if (value := run.value(column)) is not None]
        return Value(fmean(found), stdev(found) if len(found) > 1 else None) if found else None


@dataclass
class PublishedResult:
    """A result from a paper."""

    method: str
    source: str
    train_documents: str
    note: str
    values: dict[str, str]  # in %, as printed

    @property
    def name(self) -> str:
        return f"{self.method} ({self.source})"


@dataclass
class DataTable:
    """Rows on the same data, which are comparable."""

    data: str
    columns: list[str]
    rows: list[ComparedRuns]
    papers: list[PublishedResult]

    @cached_property
    def values(self) -> list[dict[str, Value]]:
        """Values of each row by column."""
        found = [{column: row.value(column) for column in self.columns} for row in self.rows]
        return [{column: value for column, value in row.items() if value is not None} for row in found]

    @cached_property
    def best(self) -> dict[str, float]:
        """Highest mean of each column for which higher is better."""
        means: dict[str, list[float]] = {}
        for row in self.values if len(self.rows) > 1 else []:
            for column, value in row.items():
                means.setdefault(column, []).append(value.mean)
        return {column: max(found) for column, found in means.items() if is_better_when_higher(column)}

    def is_best(self, column: str, value: Value) -> bool:
        return value.mean == self.best.get(column)

    @property
    def has_repetitions(self) -> bool:
        return any(len(row.runs) > 1 for row in self.rows)

    @property
    def about_papers(self) -> str:
        """Note about the published results."""
        sizes: dict[str, dict[str, None]] = {}
        for paper in self.papers:
            sizes.setdefault(paper.train_documents, {})[paper.source.partition(", Table")[0]] = None
        where = "; ".join(
            f"{f'{int(size):,}' if size.isdigit() else size or 'unknown'} ({', '.join(sources)})"
            for size, sources in sizes.items()
        )
        has_notes = any(paper.note for paper in self.papers)
        notes = "; see zoo/analysis/published.csv for differences in texts, splits and settings" if has_notes else ""
        return f"rows with a source are published results; their training documents: {where}{notes}"


@dataclass
class Comparison:
    keys: list[str]  # keys of the rows, without `data`
    parts: list[DataTable]


def compare_runs(
    runs: Sequence[RunFolder],
    by: Sequence[str] = ("data", "experiment"),
    columns: Sequence[str] | None = None,
    published: bool = True,
) -> Comparison:
    """Group runs into rows.

    Args:
        runs: at least one run.
        by: keys of the rows, from FACTS or settings; runs on different data are never in the same row.
        columns: metrics and costs; SHOWN by default, and all of them for `["all"]`.
        published: add published results.
    """
    for key in by:
        if key not in FACTS and not any(key in run.settings for run in runs):
            known = [*FACTS, *dict.fromkeys(name for run in runs for name in run.settings)]
            raise UserError(f"`by={key}`: these runs have no such key; {did_you_mean(key, known)}")
    chosen = chosen_columns(runs, columns)
    rows: dict[tuple[str, ...], ComparedRuns] = {}
    keys = list(dict.fromkeys(["data", *by]))
    for run in runs:
        values = {key: shown(run.fact(key) if key in FACTS else run.settings.get(key, "")) for key in keys}
        rows.setdefault(tuple(values.values()), ComparedRuns(values)).runs.append(run)
    note_mixed([row for row in rows.values() if len(row.runs) > 1], by)
    parts = []
    for data in dict.fromkeys(row.keys["data"] for row in rows.values()):
        own = [row for row in rows.values() if row.keys["data"] == data]
        present = [name for name in chosen if any(run.value(name) is not None for row in own for run in row.runs)]
        papers = papers_for(own[0].runs[0], present) if published else []
        parts.append(DataTable(data, present, own, papers))
    return Comparison(keys[1:], parts)


def chosen_columns(runs: Sequence[RunFolder], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(SHOWN)
    metrics = every_metric(runs)
    if list(columns) == ["all"]:
        return [*metrics, *COSTS]
    for name in columns:
        if name not in {*metrics, *COSTS, *SHOWN}:
            raise UserError(
                f"`columns={name}`: these runs have no such metric; {did_you_mean(name, [*metrics, *COSTS])}"
            )
    return list(dict.fromkeys(columns))


def every_metric(runs: Iterable[RunFolder]) -> list[str]:
    """Names in the order of `metrics.json`; those of a head's components, such as `inner/P@1`, come last."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    parts = tuple(f"{name.removesuffix('/P@1')}/" for name in names if name.endswith("/P@1"))
    return sorted(names, key=lambda name: name.startswith(parts))


def shown(value: Any) -> str:
    """A setting as it is written on the command line."""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def note_mixed(rows: Iterable[ComparedRuns], by: Sequence[str]) -> None:
    """Note rows whose runs differ in more than their seeds; many rows are summarized in one line."""
    mixed = [(row, keys) for row in rows if (keys := mixed_keys(row))]

    def note_row(where: str, keys: Sequence[str], split_by: Iterable[str], seed: str = "") -> None:
        settings = [key for key in keys if key != "run"]
        more = f" and {len(settings) - MAX_KEYS} more" if len(settings) > MAX_KEYS else ""
        what = [f"differ in {', '.join(settings[:MAX_KEYS])}{more}"] if settings else []
        what += [f"have the same seed{seed}"] if "run" in keys else []
        every = ",".join(dict.fromkeys([*by, *split_by]))
        note(f"{where} runs that {' or '.join(what)}; separate them with `by={every}`")

    if len(mixed) > MAX_NOTES:
        often = Counter(key for _, keys in mixed for key in keys)
        split_by = (keys[0] for _, keys in mixed)
        note_row(f"{len(mixed)} rows: averaged over", [key for key, _ in often.most_common()], split_by)
        return
    for row, keys in mixed:
        where = f"{row.name}, {row.keys['data']}" if row.name != row.keys["data"] else row.name
        seed, _ = Counter(shown(run.fact("seed")) for run in row.runs).most_common(1)[0]
        note_row(f"{where}: averaged over {len(row.runs)}", keys, keys[:1], f", {seed}")


def mixed_keys(row: ComparedRuns) -> list[str]:
    """Keys in which the runs of a row differ, except seeds; `run` if only the seed is repeated."""
    facts = [key for key in ("experiment", "head", "backbone") if len({shown(run.fact(key)) for run in row.runs}) > 1]
    differing = [*facts, *(key for key in differing_settings(row.runs) if key.removeprefix("model.") not in facts)]
    seeds = {shown(run.fact("seed")) for run in row.runs}
    return differing or (["run"] if len(seeds) < len(row.runs) else [])


def differing_settings(runs: Sequence[RunFolder]) -> list[str]:
    """Settings with different values; if a class differs, its settings are left out.

    Settings that all runs have come first.
    """
    if len({REPEATED_LINE.sub("", run.config_text) for run in runs}) == 1:
        return []  # the usual case of several seeds, without parsing YAML
    known = [run.settings for run in runs if run.settings]
    keys = dict.fromkeys(key for settings in known for key in settings if not is_repeated(key))
    missing = object()
    differing = [key for key in keys if any(one.get(key, missing) != known[0].get(key, missing) for one in known)]
    differing = [key for key in differing if not any(key.startswith(f"{other}.") for other in differing)]
    return sorted(differing, key=lambda key: not all(key in settings for settings in known))


def is_repeated(key: str) -> bool:
    sections = key.split(".")
    return any(".".join(sections[:depth]) in REPEATED for depth in range(1, len(sections) + 1))


def papers_for(run: RunFolder, columns: Sequence[str]) -> list[PublishedResult]:
    """Published results on the data of a run, with at least one of the columns; none for part of a corpus."""
    if run.facts.get("sample") or run.limit_train or run.is_validation:
        return []
    return [paper for paper in read_papers(run.corpus) if any(column in paper.values for column in columns)]


def read_papers(corpus: str) -> list[PublishedResult]:
    with PUBLISHED.open(encoding="utf8", newline="") as lines:
        reader = csv.DictReader(lines)
        names = list(reader.fieldnames or [])
        measured = names[names.index("note") + 1 :]
        rows = [row for row in reader if row["corpus"] == corpus]
    return [
        PublishedResult(
            row["method"],
            row["source"],
            row["train_documents"],
            row["note"],
            {NO_THRESHOLD.get(name, name): row[name] for name in measured if row[name]},
        )
        for row in rows
    ]
