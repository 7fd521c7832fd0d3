"""Runs side by side: which ones make a row, their means and deviations, and what papers have printed."""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from datamodules.errors import UserError
from datamodules.progress import note
from zoo.results import COSTS, FACTS, Run

SHOWN = (
    *("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5"),
    *("macroF@5/few", "macroF@5/all", "microF1@tuned"),
    *COSTS,
)
PUBLISHED = Path(__file__).with_name("published.csv")
NO_THRESHOLD = {"microF1": "microF1@0.5", "macroF1": "macroF1@0.5"}  # what papers mean where they do not say
NAMED = 5  # keys in a note, and suggestions in an error, at most
MOST_NOTES = 3  # of rows that mix runs; more are told in one line
# Settings, and sections of them, in which runs may differ and still be repetitions of each other.
REPEATED = {
    *("seed_everything", "name", "runs", "ckpt", "ckpt_path", "final_test", "wandb", "last"),
    *("trainer.logger", "trainer.default_root_dir", "trainer.devices", "trainer.num_nodes", "trainer.accelerator"),
    *("trainer.strategy", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.log_every_n_steps"),
    *("data.cache_dir", "data.root", "data.download", "data.num_workers", "best.dirpath"),
}
REPEATED_LINE = re.compile(r"^(seed_everything|name|runs): \S+$", re.MULTILINE)


class Value(NamedTuple):
    """Over the runs of a row; a single run has no deviation."""

    mean: float
    deviation: float | None


@dataclass
class Row:
    """Runs that differ in nothing that was asked for."""

    keys: dict[str, str]  # shown values of what the rows are told apart by
    runs: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join([value for key, value in self.keys.items() if key != "data"]) or self.keys["data"]

    def value(self, column: str) -> Value | None:
        """Over the runs that have it."""
        found = [value for run in self.runs if (value := run.value(column)) is not None]
        return Value(fmean(found), stdev(found) if len(found) > 1 else None) if found else None


@dataclass
class Paper:
    """A row that somebody has printed."""

    method: str
    source: str
    train_documents: str
    note: str
    values: dict[str, str]  # in %, as printed

    @property
    def name(self) -> str:
        return f"{self.method} ({self.source})"


@dataclass
class Part:
    """Rows on the same data, which alone can be compared."""

    data: str
    columns: list[str]
    rows: list[Row]
    papers: list[Paper]

    @cached_property
    def values(self) -> list[dict[str, Value]]:
        """Of each row, by column."""
        found = [{column: row.value(column) for column in self.columns} for row in self.rows]
        return [{column: value for column, value in row.items() if value is not None} for row in found]

    @cached_property
    def best(self) -> dict[str, float]:
        """The highest mean of each column in which rows compete."""
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
        """Where the rows of papers are from, in one line."""
        sizes: dict[str, dict[str, None]] = {}
        for paper in self.papers:
            sizes.setdefault(paper.train_documents, {})[paper.source.partition(", Table")[0]] = None
        where = "; ".join(
            f"{f'{int(size):,}' if size.isdigit() else size or 'not said'} ({', '.join(sources)})"
            for size, sources in sizes.items()
        )
        notes = (
            "; zoo/compare/published.csv notes other texts, splits and settings"
            if any(p.note for p in self.papers)
            else ""
        )
        return f"with a source in brackets: printed in papers, not run here; training documents there: {where}{notes}"


@dataclass
class Comparison:
    keys: list[str]  # what rows are told apart by, without `data`
    parts: list[Part]


def compare_runs(
    runs: Sequence[Run],
    by: Sequence[str] = ("data", "experiment"),
    columns: Sequence[str] | None = None,
    published: bool = True,
) -> Comparison:
    """Put runs into rows.

    Args:
        runs: at least one.
        by: what tells rows apart, of FACTS or settings; runs on different data never share a row.
        columns: metrics and costs to show; SHOWN if not given, and every metric for `["all"]`.
        published: add what papers have printed.
    """
    for key in by:
        if key not in FACTS and not any(key in run.settings for run in runs):
            known = [*FACTS, *dict.fromkeys(name for run in runs for name in run.settings)]
            raise UserError(f"--by: there is no {key!r} in these runs; {suggestion(key, known)}")
    chosen = chosen_columns(runs, columns)
    rows: dict[tuple[str, ...], Row] = {}
    keys = list(dict.fromkeys(["data", *by]))
    for run in runs:
        values = {key: shown(run.fact(key) if key in FACTS else run.settings.get(key, "")) for key in keys}
        rows.setdefault(tuple(values.values()), Row(values)).runs.append(run)
    tell_mixed([row for row in rows.values() if len(row.runs) > 1], by)
    parts = []
    for data in dict.fromkeys(row.keys["data"] for row in rows.values()):
        own = [row for row in rows.values() if row.keys["data"] == data]
        present = [name for name in chosen if any(run.value(name) is not None for row in own for run in row.runs)]
        papers = papers_for(own[0].runs[0], present) if published else []
        parts.append(Part(data, present, own, papers))
    return Comparison(keys[1:], parts)


def suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=NAMED, cutoff=0.5)
    ends = [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2] and key not in close]
    close = [*ends, *close][:NAMED]
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known[: 2 * NAMED])}, ..."


def chosen_columns(runs: Sequence[Run], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(SHOWN)
    metrics = every_metric(runs)
    if list(columns) == ["all"]:
        return [*metrics, *COSTS]
    for name in columns:
        if name not in {*metrics, *COSTS, *SHOWN}:
            raise UserError(f"--columns: there is no {name!r} in these runs; {suggestion(name, [*metrics, *COSTS])}")
    return list(dict.fromkeys(columns))


def every_metric(runs: Iterable[Run]) -> list[str]:
    """Names in the order of `metrics.json`, with those of a head's parts, such as `inner/P@1`, last."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    parts = tuple(f"{name.removesuffix('/P@1')}/" for name in names if name.endswith("/P@1"))
    return sorted(names, key=lambda name: name.startswith(parts))


def is_count(column: str) -> bool:
    return "labels/" in column


def is_threshold(column: str) -> bool:
    return column.rpartition("/")[2] == "threshold"


def is_share(column: str) -> bool:
    """Whether it is a fraction that tables show in %."""
    return not is_count(column) and not is_threshold(column) and column not in COSTS


is_better_when_higher = is_share  # all shares are, and nothing else is


def shown(value: Any) -> str:
    """A setting as people write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def tell_mixed(rows: Iterable[Row], by: Sequence[str]) -> None:
    """Say so where the runs of a row are more than repetitions with other seeds; of many rows, in one line."""
    mixed = [(row, keys) for row in rows if (keys := mixed_keys(row))]

    def tell(where: str, keys: Sequence[str], apart: Iterable[str], seed: str = "") -> None:
        settings = [key for key in keys if key != "run"]
        more = f" and {len(settings) - NAMED} more" if len(settings) > NAMED else ""
        what = [f"differ in {', '.join(settings[:NAMED])}{more}"] if settings else []
        what += [f"have the same seed{seed}"] if "run" in keys else []
        option = ",".join(dict.fromkeys([*by, *apart]))
        note(f"{where} runs that {' or '.join(what)}; `--by {option}` tells them apart")

    if len(mixed) > MOST_NOTES:
        often = Counter(key for _, keys in mixed for key in keys)
        tell(f"{len(mixed)} rows: averaged over", [key for key, _ in often.most_common()], (k[0] for _, k in mixed))
        return
    for row, keys in mixed:
        where = f"{row.name}, {row.keys['data']}" if row.name != row.keys["data"] else row.name
        seed, _ = Counter(shown(run.fact("seed")) for run in row.runs).most_common(1)[0]
        tell(f"{where}: averaged over {len(row.runs)}", keys, keys[:1], f", {seed}")


def mixed_keys(row: Row) -> list[str]:
    """In what the runs differ besides seeds; `run` where they have the same seed twice and differ in nothing else."""
    facts = [key for key in ("experiment", "head", "backbone") if len({shown(run.fact(key)) for run in row.runs}) > 1]
    differing = [*facts, *(key for key in differing_settings(row.runs) if key.removeprefix("model.") not in facts)]
    seeds = {shown(run.fact("seed")) for run in row.runs}
    return differing or (["run"] if len(seeds) < len(row.runs) else [])


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Keys that do not have the same value in all runs; of a class that differs, not its settings.

    Those that all runs have come first.
    """
    if len({REPEATED_LINE.sub("", run.config_text) for run in runs}) == 1:
        return []  # the usual case of several seeds, told without the time that it takes to parse YAML
    known = [run.settings for run in runs if run.settings]
    keys = dict.fromkeys(key for settings in known for key in settings if not is_repeated(key))
    missing = object()
    differing = [key for key in keys if any(one.get(key, missing) != known[0].get(key, missing) for one in known)]
    differing = [key for key in differing if not any(key.startswith(f"{other}.") for other in differing)]
    return sorted(differing, key=lambda key: not all(key in settings for settings in known))


def is_repeated(key: str) -> bool:
    sections = key.split(".")
    return any(".".join(sections[:depth]) in REPEATED for depth in range(1, len(sections) + 1))


def papers_for(run: Run, columns: Sequence[str]) -> list[Paper]:
    """Rows of papers on the data of a run, with at least one of the columns; none for a part of a corpus."""
    if run.facts.get("sample") or run.limit_train or run.is_validation:
        return []
    return [paper for paper in read_papers(run.corpus) if any(column in paper.values for column in columns)]


def read_papers(corpus: str) -> list[Paper]:
    with PUBLISHED.open(encoding="utf8", newline="") as lines:
        reader = csv.DictReader(lines)
        names = list(reader.fieldnames or [])
        measured = names[names.index("note") + 1 :]
        rows = [row for row in reader if row["corpus"] == corpus]
    return [
        Paper(
            row["method"],
            row["source"],
            row["train_documents"],
            row["note"],
            {NO_THRESHOLD.get(name, name): row[name] for name in measured if row[name]},
        )
        for row in rows
    ]
