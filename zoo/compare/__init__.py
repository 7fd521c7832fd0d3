"""`python -m zoo compare`: finished runs side by side."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from datamodules.errors import UserError
from datamodules.files import written_whole
from datamodules.progress import note
from zoo.compare.comparison import Comparison, Paper, Part, Row, Value, compare_runs, is_count, is_share, is_threshold
from zoo.compare.sheets import Cell, Sheet, html_fragment, to_csv, to_html, to_markdown, to_terminal
from zoo.results import read_runs

if TYPE_CHECKING:
    from zoo.compare.pairs import Pair

Format = Literal["table", "markdown", "csv", "html"]
FORMATS: dict[str, Format] = {".md": "markdown", ".csv": "csv", ".html": "html"}
TITLE = "Runs compared"
BOOTSTRAP = "paired bootstrap over test documents; bold: p < 0.05"
SMALL = 100  # below it a number of seconds has a decimal


def compare(
    runs: list[str],
    by: str = "data,experiment",
    columns: str | None = None,
    format: Format | None = None,
    out: str | None = None,
    significance: bool = False,
    against: str | None = None,
    samples: int = 1000,
    seed: int = 0,
    published: bool = True,
) -> None:
    """Compare finished runs in one table for each corpus.

    Args:
        runs: run folders, or folders above them.
        by: what tells rows apart: data, experiment, head, backbone, seed, split, run, or settings such as
            model.head.dropout and stages.main.epochs. Rows are means over the runs that are the same in these.
        columns: metrics to show, such as P@1,PSP@5, and seconds, parameters and memory; `all` for every one.
        format: what to write; the ending of --out says it otherwise, and without one it is a table.
        out: write to this file, not to the terminal.
        significance: also compare with a reference on the same test documents, by a paired bootstrap.
        against: name of the row that is the reference; the first one if not given. Goes with --significance.
        samples: resamples of the bootstrap.
        seed: of the resamples.
        published: show what papers have printed for a corpus below its runs.
    """
    kind = format_of(format, out)
    if samples < 1:
        raise UserError(f"--samples={samples} is too low: give 1,000 or so")
    if seed < 0:
        raise UserError(f"--seed={seed} is negative: give 0 or more")
    named = None if columns is None else listed("columns", columns)
    every = ["all"] if kind == "csv" else None
    comparison = compare_runs(read_runs(runs), listed("by", by), named or every, published)
    pairs: list[Pair] = []
    if significance or against is not None:
        from zoo.compare.pairs import compare_pairs

        pairs = compare_pairs(comparison, against, samples, seed, None if named == ["all"] else named)
    write(rendered(kind, comparison, pairs), out)


def listed(option: str, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise UserError(f"--{option} names nothing: give names with commas between them")
    return names


def format_of(format: Format | None, out: str | None) -> Format:
    if format is not None or out is None:
        return format or "table"
    if (suffix := Path(out).suffix.lower()) not in FORMATS:
        raise UserError(f"--out={out}: its ending is none of {', '.join(FORMATS)}; say what to write with --format")
    return FORMATS[suffix]


def rendered(kind: Format, comparison: Comparison, pairs: list[Pair]) -> str:
    """What goes out; csv, which can hold one table only, has the pairs if there are any."""
    if kind == "csv":
        return to_csv(list(pair_records(pairs) if pairs else records(comparison)))
    sheets = [*comparison_sheets(comparison), *map(pair_sheet, pairs)]
    if kind == "html":
        return to_html(sheets, TITLE)
    return to_markdown(sheets) if kind == "markdown" else to_terminal(sheets)


def write(text: str, out: str | None) -> None:
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(out)
    if path.is_dir():
        raise UserError(f"--out={out} is a folder: give a file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--out={out}: the folder {path.parent} does not exist")
    try:
        with written_whole(path) as aside:
            aside.write_text(text, "utf8")
    except PermissionError as error:
        raise UserError(f"--out={out} cannot be written: {error.strerror}") from error
    note(f"written to {out}")


def html_table(comparison: Comparison) -> str:
    """The tables alone, one for each data, of class `results`, for a page of somebody else's."""
    return "\n".join(map(html_fragment, comparison_sheets(comparison)))


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    return [part_sheet(part, comparison.keys) for part in comparison.parts]


def part_sheet(part: Part, keys: list[str]) -> Sheet:
    """Rows on the same data, the best of each metric in bold, and those of papers below."""
    texts, counted = keys or ["data"], ["runs"] if part.has_repetitions else []
    rows = []
    for row, values in zip(part.rows, part.values, strict=True):
        names = [Cell(row.keys[key]) for key in texts]
        size = [Cell(f"{len(row.runs):,}") for _ in counted]
        rows.append([*names, *size, *(value_cell(part, column, values.get(column)) for column in part.columns)])
    gap = [Cell("")] * (len(texts) - 1 + len(counted))
    apart = [
        [Cell(paper.name, about=paper.note), *gap, *(Cell(paper.values.get(column, "")) for column in part.columns)]
        for paper in part.papers
    ]
    header = [*texts, *counted, *("memory, MB" if column == "memory" else column for column in part.columns)]
    return Sheet(f"{part.data} (in %)", header, rows, len(texts), apart, part.about_papers if apart else "")


def value_cell(part: Part, column: str, value: Value | None) -> Cell:
    return Cell("") if value is None else Cell(written(column, value), part.is_best(column, value))


def written(column: str, value: Value) -> str:
    """Mean and deviation as tables show them; what is the same in all runs has no deviation."""
    mean = number(column, value.mean)
    if value.deviation is None or (value.deviation == 0 and not is_share(column)):
        return mean
    return f"{mean} ± {number(column, value.deviation)}"


def number(column: str, value: float) -> str:
    if is_share(column):
        return f"{100 * value:.2f}"
    if is_threshold(column):
        return f"{value:.3f}"
    has_decimal = value < SMALL if column == "seconds" else is_count(column) and not value.is_integer()
    return f"{value:,.1f}" if has_decimal else f"{value:,.0f}"


def records(comparison: Comparison) -> Iterator[dict[str, str]]:
    """Rows for a csv file: shares in %, with six decimals, and deviations in columns of their own."""
    for part in comparison.parts:
        for row, values in zip(part.rows, part.values, strict=True):
            yield row_record(part, row, values)
        first = (comparison.keys or ["method"])[0]
        for paper in part.papers:
            yield paper_record(part, paper, first)


def row_record(part: Part, row: Row, values: dict[str, Value]) -> dict[str, str]:
    record = {**row.keys, "source": "", "train_documents": "", "note": "", "runs": str(len(row.runs))}
    for column in part.columns:
        mean, deviation = values.get(column, (None, None))
        record[column] = precise(column, mean)
        record[f"{column}±"] = precise(column, deviation)
    return record


def paper_record(part: Part, paper: Paper, name: str) -> dict[str, str]:
    about = {"source": paper.source, "train_documents": paper.train_documents, "note": paper.note}
    printed = {column: paper.values[column] for column in part.columns if column in paper.values}
    return {"data": part.data, name: paper.method, **about, **printed}


def precise(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.6f}" if is_share(column) else f"{value:.6f}".rstrip("0").rstrip(".")


def pair_sheet(pair: Pair) -> Sheet:
    """A row for each metric; differences that chance hardly makes are bold."""
    rows = [
        [
            Cell(one.metric),
            Cell(f"{100 * one.reference:.2f}"),
            Cell(f"{100 * one.value:.2f}"),
            Cell(f"{100 * one.difference:+.2f}", one.is_significant),
            Cell("too few" if math.isnan(one.p) else f"{100 * one.low:+.2f} to {100 * one.high:+.2f}"),
            Cell("" if math.isnan(one.p) else f"{one.p:{'.3f' if one.p >= 0.001 else '.1g'}}", one.is_significant),
        ]
        for one in pair.differences
    ]
    header = ["metric", pair.reference, pair.other, "difference", "95 % interval", "p"]
    title = f"{pair.data}: {pair.other} against {pair.reference} (in %)"
    return Sheet(title, header, rows, 1, about=BOOTSTRAP)


def pair_records(pairs: list[Pair]) -> Iterator[dict[str, str]]:
    for pair in pairs:
        for one in pair.differences:
            numbers = {
                "reference_value": 100 * one.reference,
                "value": 100 * one.value,
                "difference": 100 * one.difference,
                "low": 100 * one.low,
                "high": 100 * one.high,
                "p": one.p,
            }
            names = {"data": pair.data, "reference": pair.reference, "row": pair.other, "metric": one.metric}
            yield names | {name: "" if math.isnan(value) else f"{value:.6f}" for name, value in numbers.items()}
