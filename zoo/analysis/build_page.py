"""Builds the report page of finished runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from zoo.analysis.comparison import compare_runs
from zoo.analysis.evidence import Evidence
from zoo.analysis.page import DataSection, Page, Picture, RunSection
from zoo.analysis.pairs import read_tested
from zoo.analysis.pictures import bins, of_run, tail_f1
from zoo.analysis.tables import comparison_sheets
from zoo.analysis.tail import tail_pair
from zoo.core.console import note
from zoo.core.errors import first_line
from zoo.core.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_DATA = ("label_distribution", "label_correlation")  # the same for all runs on the same data
OF_RUN = ("bins", "reliability", "curves", "norms", "importances", "tsne", "experts")
KEYS = (("data", "experiment"), ("data", "experiment", "seed"), ("data", "experiment", "run"))


class TitledRun(NamedTuple):
    """A run with its unique title, a slug for file names, and what the page shows of it."""

    run: RunFolder
    title: str
    slug: str
    evidence: Evidence | None
    figures: dict[str, Figure]


def make_page(runs: Sequence[RunFolder]) -> Page:
    keys = next((keys for keys in KEYS if len({tuple(map(run.fact, keys)) for run in runs}) == len(runs)), KEYS[-1])
    data, titles = list(dict.fromkeys(run.data for run in runs)), unique_titles(runs)
    slugs = unique_slugs([*data, *titles] if len(data) > 1 else titles)
    prefixes = {name: f"{slug}-" for name, slug in zip(data, slugs, strict=False)} if len(data) > 1 else {}
    titled = []
    for run, title, slug in zip(runs, titles, slugs[-len(titles) :], strict=True):
        evidence = Evidence.load(run)
        try:
            figures = of_run(run, evidence)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of a damaged or a stranger's file
            note(f"{run.path}: its pictures cannot be drawn: {first_line(error)}")
            figures, evidence = {}, None
        titled.append(TitledRun(run, title, slug, evidence, figures))
    groups = {name: [one for one in titled if one.run.data == name] for name in data}
    return Page(
        "Report of runs" if len(runs) > 1 else f"Report of {titles[0]}",
        datetime.now().strftime("%Y-%m-%d %H:%M"),
        comparison_sheets(compare_runs(runs, keys)),
        [data_section(name, group, prefixes.get(name, "")) for name, group in groups.items()],
        [run_section(one, len(runs) == 1, len(groups[one.run.data]) == 1) for one in titled],
    )


def data_section(data: str, runs: Sequence[TitledRun], prefix: str) -> DataSection:
    shared = []
    for kind in OF_DATA:
        figure = next((one.figures[kind] for one in runs if kind in one.figures), None)
        if figure is not None:
            shared.append(Picture(kind, f"{prefix}{kind}", figure))
    title = re.sub("^sample", "the built-in sample", data)
    return DataSection(title, [*shared, *comparisons(runs, prefix)])


def run_section(one: TitledRun, is_only: bool, is_only_of_data: bool) -> RunSection:
    kinds = [kind for kind in OF_RUN if kind in one.figures and (kind != "bins" or is_only_of_data)]
    prefix = "" if is_only else f"{one.slug}-"
    pictures = [Picture(kind, f"{prefix}{kind}", one.figures[kind]) for kind in kinds]
    return RunSection(one.run, one.title, one.evidence, pictures)


def comparisons(runs: Sequence[TitledRun], prefix: str) -> Iterator[Picture]:
    """Pictures that compare runs on the same data: bins of all runs, and rare labels of each run with the first."""
    if len(runs) < 2:
        return
    if (figure := bins({one.title: one.run.metrics for one in runs})) is not None:
        yield Picture("bins", f"{prefix}bins", figure)
    first = read_tested(runs[0].run)
    for one in runs[1:] if first is not None else ():
        other = read_tested(one.run)
        if first is None or other is None or other.ids != first.ids:
            continue
        figure = tail_f1(tail_pair(first, other), (runs[0].title, one.title))
        if figure is not None:
            yield Picture("tail_f1", f"{prefix}tail_f1-{one.slug}", figure, one.title)


def unique_titles(runs: Sequence[RunFolder]) -> list[str]:
    """Experiments, with the data, the seed or the time if they are not unique otherwise."""
    candidates = (
        [run.experiment for run in runs],
        [f"{run.experiment}, {run.data}" for run in runs],
        [f"{run.experiment}, seed {run.facts.get('seed')}" for run in runs],
        [run.name for run in runs],
    )
    unique = next((titles for titles in candidates if len(set(titles)) == len(titles)), None)
    return unique or numbered(candidates[-1], "{} ({})")


def unique_slugs(titles: Sequence[str]) -> list[str]:
    return numbered([slug(title) for title in titles], "{}-{}")


def numbered(names: Sequence[str], pattern: str) -> list[str]:
    """Make names unique by appending numbers to those that are taken."""
    found: list[str] = []
    for name in names:
        variants = (name if number == 1 else pattern.format(name, number) for number in count(1))
        found.append(next(variant for variant in variants if variant not in found))
    return found


def slug(title: str) -> str:
    """A file name of letters, digits and hyphens."""
    return re.sub(r"[^\w-]+", "-", title).strip("-").lower() or "run"
