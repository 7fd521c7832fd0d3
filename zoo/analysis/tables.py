"""Tables of compared runs: sheets for people, records for csv files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zoo.analysis.comparison import ComparedRuns, Comparison, DataTable, PublishedResult, Value
from zoo.analysis.sheets import Cell, Sheet
from zoo.core.metrics import is_count, is_fraction, is_threshold, percent

if TYPE_CHECKING:
    from zoo.analysis.pairs import Pair

BOOTSTRAP = "paired bootstrap over test documents; bold: p < 0.05"
FEW_SECONDS = 100  # shown with a decimal


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    return [part_sheet(part, comparison.keys) for part in comparison.parts]


def part_sheet(part: DataTable, keys: list[str]) -> Sheet:
    """Rows on the same data, with the best of each metric in bold, above published results."""
    texts, counted = keys or ["data"], ["runs"] if part.has_repetitions else []
    rows = []
    for row, values in zip(part.rows, part.values, strict=True):
        names = [Cell(row.keys[key]) for key in texts]
        size = [Cell(f"{len(row.runs):,}") for _ in counted]
        rows.append([*names, *size, *(value_cell(part, column, values.get(column)) for column in part.columns)])
    gap = [Cell("")] * (len(texts) - 1 + len(counted))
    published = [
        [Cell(paper.name, about=paper.note), *gap, *(Cell(paper.values.get(column, "")) for column in part.columns)]
        for paper in part.papers
    ]
    header = [*texts, *counted, *("memory, MB" if column == "memory" else column for column in part.columns)]
    return Sheet(f"{part.data} (in %)", header, rows, len(texts), published, part.about_papers if published else "")


def value_cell(part: DataTable, column: str, value: Value | None) -> Cell:
    return Cell("") if value is None else Cell(written(column, value), part.is_best(column, value))


def written(column: str, value: Value) -> str:
    """Mean ± deviation; costs that are equal in all runs have no deviation."""
    mean = number(column, value.mean)
    if value.deviation is None or (value.deviation == 0 and not is_fraction(column)):
        return mean
    return f"{mean} ± {number(column, value.deviation)}"


def number(column: str, value: float) -> str:
    if is_fraction(column):
        return percent(value)
    if is_threshold(column):
        return f"{value:.3f}"
    has_decimal = value < FEW_SECONDS if column == "seconds" else is_count(column) and not value.is_integer()
    return f"{value:,.1f}" if has_decimal else f"{value:,.0f}"


def records(comparison: Comparison) -> Iterator[dict[str, str]]:
    """Rows of a csv file: fractions in %, with six decimals, and deviations in separate columns."""
    for part in comparison.parts:
        for row, values in zip(part.rows, part.values, strict=True):
            yield row_record(part, row, values)
        first = (comparison.keys or ["method"])[0]
        for paper in part.papers:
            yield paper_record(part, paper, first)


def row_record(part: DataTable, row: ComparedRuns, values: dict[str, Value]) -> dict[str, str]:
    record = {**row.keys, "source": "", "train_documents": "", "note": "", "runs": str(len(row.runs))}
    for column in part.columns:
        mean, deviation = values.get(column, (None, None))
        record[column] = precise(column, mean)
        record[f"{column}±"] = precise(column, deviation)
    return record


def paper_record(part: DataTable, paper: PublishedResult, name: str) -> dict[str, str]:
    about = {"source": paper.source, "train_documents": paper.train_documents, "note": paper.note}
    printed = {column: paper.values[column] for column in part.columns if column in paper.values}
    return {"data": part.data, name: paper.method, **about, **printed}


def precise(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.6f}" if is_fraction(column) else f"{value:.6f}".rstrip("0").rstrip(".")


def pair_sheet(pair: Pair) -> Sheet:
    """One row per metric; significant differences are bold."""
    rows = [
        [
            Cell(one.metric),
            Cell(percent(one.reference)),
            Cell(percent(one.value)),
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
