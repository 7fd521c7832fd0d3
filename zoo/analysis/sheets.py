"""Renders tables for the terminal, and as markdown, csv and html."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zoo.analysis.templating import render
from zoo.core.errors import printable

WIDTH = 100_000  # characters; lines are never wrapped or truncated
FORMULA = ("=", "+", "-", "@")  # first characters of a formula
MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\|*_`<>[]"} | {"\n": " "})


class Cell(NamedTuple):
    text: str
    is_bold: bool = False
    about: str = ""  # tooltip in html


@dataclass
class Sheet:
    """A table."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    texts: int  # number of leading columns with text; the others have numbers
    published: list[list[Cell]] = field(default_factory=list)  # rows below a line, which do not compete
    about: str = ""  # note below the table


def to_terminal(sheets: Iterable[Sheet]) -> str:
    """Text with wide lines; bold if standard output is a terminal."""
    target = io.StringIO()
    is_terminal = sys.stdout.isatty()
    console = Console(file=target, force_terminal=is_terminal, width=WIDTH, soft_wrap=True)  # prints `Text` verbatim
    for sheet in sheets:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for place, name in enumerate(sheet.header):
            table.add_column(Text(in_one_line(name)), justify="left" if place < sheet.texts else "right", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*(Text(in_one_line(cell.text), "bold" if cell.is_bold else "") for cell in row))
        if sheet.published:
            table.add_row(Text("-" * max(len(row[0].text) for row in sheet.published)))
        for row in sheet.published:
            table.add_row(*(Text(in_one_line(cell.text)) for cell in row))
        console.print(Text(in_one_line(sheet.title), "bold"))
        console.print(table)
        if sheet.about:
            console.print(Text(in_one_line(sheet.about)))
        console.print()
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().rstrip().splitlines())


def in_one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))


def to_markdown(sheets: Iterable[Sheet]) -> str:
    return "\n".join(markdown_lines(sheet) for sheet in sheets)


def markdown_lines(sheet: Sheet) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def written(text: str) -> str:
        return in_one_line(text).translate(MARKDOWN_SIGNS)

    def escaped(cell: Cell) -> str:
        text = written(cell.text)
        return f"**{text}**" if cell.is_bold else text

    marks = ["---" if place < sheet.texts else "---:" for place in range(len(sheet.header))]
    lines = [
        f"### {written(sheet.title)}",
        "",
        line(map(written, sheet.header)),
        line(marks),
        *(line(map(escaped, row)) for row in sheet.rows),
        *(line(f"*{escaped(cell)}*" if cell.text else "" for cell in row) for row in sheet.published),
        "",
        *([written(sheet.about), ""] if sheet.about else []),
    ]
    return "".join(f"{one}\n" for one in lines)


def to_html(sheets: Iterable[Sheet], title: str) -> str:
    return render("comparison.html", title=title, sheets=list(sheets))


def to_csv(records: Sequence[dict[str, str]]) -> str:
    """Records with the union of their names as columns."""
    names = list(dict.fromkeys(name for record in records for name in record))
    target = io.StringIO(newline="")
    writer = csv.DictWriter(target, fieldnames=names, restval="", lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in names})
    writer.writerows({name: csv_cell(text) for name, text in record.items()} for record in records)
    return target.getvalue()


def csv_cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula; numbers stay as they are."""
    text = in_one_line(text)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.lstrip().startswith(FORMULA) else text
    return text
