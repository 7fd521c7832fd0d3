"""`python -m zoo report`: finished runs as a page of tables, pictures and examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

from callbacks.pictures import bins, of_files, tail_f1
from callbacks.pictures.canvas import svg_file
from callbacks.pictures.files import RunFiles
from datamodules.errors import UserError
from datamodules.files import written_whole
from datamodules.progress import note
from zoo.compare import html_table
from zoo.compare.comparison import compare_runs
from zoo.report.collect import ensure_evidence
from zoo.report.page import DataPart, Page, Picture, RunPart
from zoo.report.tail import label_scores, tail_pair
from zoo.results import Run, read_runs

OF_DATA = ("label_distribution", "label_correlation")  # the same for all runs on the same data
OF_RUN = ("bins", "curves", "norms", "tsne", "experts")
KEYS = (("data", "experiment"), ("data", "experiment", "seed"), ("data", "experiment", "run"))


def report(runs: list[str], out: str = "report") -> None:
    """Draw finished runs on a page that needs no network.

    Args:
        runs: run folders, or folders above them.
        out: folder for index.html, and for each picture as a file; other files in it stay.
    """
    found = read_runs(runs)
    folder = make_folder(out)
    for run in found:
        ensure_evidence(run)
    write(make_page(found), folder)
    note(f"report: {folder / 'index.html'}")


def make_folder(out: str) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={out} cannot be made: {error.strerror}; give a folder") from error
    return folder


def write(page: Page, folder: Path) -> None:
    """Each file whole; what else is in the folder stays."""
    texts = {f"{picture.name}.svg": svg_file(picture.figure, picture.name) for picture in page.pictures}
    try:
        for name, text in (texts | {"index.html": page.html()}).items():
            with written_whole(folder / name) as aside:
                aside.write_text(text, "utf8", newline="\n")
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(f"--out={folder} cannot be written: {error.strerror}") from error


def make_page(runs: Sequence[Run]) -> Page:
    keys = next((keys for keys in KEYS if len({tuple(map(run.fact, keys)) for run in runs}) == len(runs)), KEYS[-1])
    titles = unique_titles(runs)
    files = [RunFiles.read(run.folder) for run in runs]
    for title, one in zip(titles, files, strict=True):
        for line in one.broken:
            note(f"{title}: {line}; the page leaves it out")
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.data, []).append(place)
    drawn = [of_files(one) for one in files]
    parts = []
    of_data = list(groups) if len(groups) > 1 else []
    slugs = unique_slugs([*of_data, *titles])
    prefixes = {data: f"{name}-" for data, name in zip(of_data, slugs, strict=False)}
    slugs = slugs[len(of_data) :]
    for data, places in groups.items():
        prefix = prefixes.get(data, "")
        shared = [
            Picture(kind, f"{prefix}{kind}", next(drawn[place][kind] for place in places if kind in drawn[place]))
            for kind in OF_DATA
            if any(kind in drawn[place] for place in places)
        ]
        compared = comparisons([Compared(runs[i], titles[i], slugs[i], files[i]) for i in places], prefix)
        parts.append(DataPart(re.sub("^sample", "the built-in sample", data), [*shared, *compared]))
    sections = []
    for run, title, name, one, figures in zip(runs, titles, slugs, files, drawn, strict=True):
        prefix = f"{name}-" if len(runs) > 1 else ""
        kinds = [kind for kind in OF_RUN if kind in figures and (kind != "bins" or len(groups[run.data]) == 1)]
        pictures = [Picture(kind, f"{prefix}{kind}", figures[kind]) for kind in kinds]
        sections.append(RunPart(run, title, one, pictures))
    title = "Report of runs" if len(runs) > 1 else f"Report of {titles[0]}"
    return Page(title, datetime.now().strftime("%Y-%m-%d %H:%M"), html_table(compare_runs(runs, keys)), parts, sections)


class Compared(NamedTuple):
    """A run beside others on the same data."""

    run: Run
    title: str
    slug: str
    files: RunFiles


def comparisons(runs: Sequence[Compared], prefix: str) -> Iterator[Picture]:
    """Runs on the same data: all in one picture of bins, and rare labels of each other one against the first."""
    if len(runs) < 2:
        return
    if (figure := bins({one.title: one.run.metrics for one in runs})) is not None:
        yield Picture("bins", f"{prefix}bins", figure)
    scores = (label_scores(one.run) if one.files.names else None for one in runs)
    if (first := next(scores)) is None:
        return
    for one, other in zip(runs[1:], scores, strict=True):
        if other is None or other.ids != first.ids:
            continue
        pair = tail_pair(first, other)
        figure = tail_f1(pair.names, pair.documents, pair.one, pair.other, (runs[0].title, one.title))
        if figure is not None:
            yield Picture("tail_f1", f"{prefix}tail_f1-{one.slug}", figure, one.title)


def unique_titles(runs: Sequence[Run]) -> list[str]:
    """Experiments; with the seed, or else the time, where that alone tells runs apart."""
    tried = (
        [run.experiment for run in runs],
        [f"{run.experiment}, {run.data}" for run in runs],
        [f"{run.experiment}, seed {run.facts.get('seed')}" for run in runs],
        [run.name for run in runs],
    )
    unique = next((titles for titles in tried if len(set(titles)) == len(titles)), None)
    if unique is not None:
        return unique
    seen: Counter[str] = Counter()
    titles = []
    for name in tried[-1]:
        seen[name] += 1
        titles.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return titles


def unique_slugs(titles: Sequence[str]) -> list[str]:
    """A slug for each, with a number behind those that another has already."""
    found: list[str] = []
    for plain in map(slug, titles):
        names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
        found.append(next(name for name in names if name not in found))
    return found


def slug(title: str) -> str:
    """A name for files: letters, digits and hyphens."""
    return re.sub(r"[^\w-]+", "-", title).strip("-").lower() or "run"
