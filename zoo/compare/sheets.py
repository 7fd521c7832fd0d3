"""Tables of cells, in the four shapes that people read or load: terminal, markdown, csv and html."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDEST = 100_000  # characters of a line: numbers are never folded or cut off
MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\|*_`<>[]"} | {"\n": " "})
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --faint: #666; --line: #ccc; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #444; --paper: #161616; } }
body { margin: 1rem auto; padding: 0 1rem; max-width: 90rem; overflow-wrap: break-word;
  font: 14px/1.4 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.2rem; }
.scroll { overflow-x: auto; max-width: 100%; }
.results { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
.results caption { text-align: left; font-weight: 600; padding: .3rem 0; }
.results th, .results td { padding: .2rem .45rem; text-align: right; white-space: nowrap; font-weight: 400; }
.results thead th { border-bottom: 1px solid var(--line); color: var(--faint); }
.results .text { text-align: left; }
.results strong { font-weight: 700; }
.results .papers { border-top: 2px solid var(--line); color: var(--faint); }
.about { color: var(--faint); font-size: .85rem; }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{content}
</body>
</html>
"""


class Cell(NamedTuple):
    text: str
    is_bold: bool = False
    about: str = ""  # for whoever points at it, where that is possible


@dataclass
class Sheet:
    """One table."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    texts: int  # columns from the left that hold text, not numbers
    apart: list[list[Cell]] = field(default_factory=list)  # rows below, which do not compete
    about: str = ""  # a line under the table


def to_terminal(sheets: Iterable[Sheet]) -> str:
    """Wide lines; bold where a terminal will show it."""
    target = io.StringIO()
    # Names go out as they are: what looks like markup or an emoji is none.
    console = Console(
        file=target,
        force_terminal=sys.stdout.isatty(),
        width=WIDEST,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    for sheet in sheets:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for place, name in enumerate(sheet.header):
            table.add_column(name, justify="left" if place < sheet.texts else "right", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*(Text(in_one_line(cell.text), "bold" if cell.is_bold else "") for cell in row))
        if sheet.apart:
            table.add_row(Text("-" * max(len(row[0].text) for row in sheet.apart)))
        for row in sheet.apart:
            table.add_row(*(Text(in_one_line(cell.text)) for cell in row))
        console.print(Text(in_one_line(sheet.title), "bold"))
        console.print(table)
        if sheet.about:
            console.print(Text(sheet.about))
        console.print()
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().rstrip().splitlines())


def in_one_line(text: str) -> str:
    return " ".join(text.splitlines())


def to_markdown(sheets: Iterable[Sheet]) -> str:
    return "\n".join(markdown_lines(sheet) for sheet in sheets)


def markdown_lines(sheet: Sheet) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def spelt(cell: Cell) -> str:
        text = cell.text.translate(MARKDOWN_SIGNS)
        return f"**{text}**" if cell.is_bold else text

    marks = ["---" if place < sheet.texts else "---:" for place in range(len(sheet.header))]
    lines = [
        f"### {sheet.title.translate(MARKDOWN_SIGNS)}",
        "",
        line(name.translate(MARKDOWN_SIGNS) for name in sheet.header),
        line(marks),
        *(line(map(spelt, row)) for row in sheet.rows),
        *(line(f"*{spelt(cell)}*" if cell.text else "" for cell in row) for row in sheet.apart),
        "",
        *([sheet.about.translate(MARKDOWN_SIGNS), ""] if sheet.about else []),
    ]
    return "".join(f"{one}\n" for one in lines)


def to_html(sheets: Iterable[Sheet], title: str) -> str:
    """One page that needs nothing from elsewhere; a wide table scrolls in its own box."""
    return PAGE.format(title=escape(title), style=STYLE, content="\n".join(map(html_fragment, sheets)))


def html_fragment(sheet: Sheet) -> str:
    """A table of class `results` in a box that scrolls, and the line under it."""

    def row(cells: Sequence[Cell]) -> str:
        parts = []
        for place, cell in enumerate(cells):
            about = f' title="{escape(cell.about)}"' if cell.about else ""
            text = escape(cell.text)
            parts.append(
                f"<td{text_class(sheet, place)}{about}>{f'<strong>{text}</strong>' if cell.is_bold else text}</td>"
            )
        return f"<tr>{''.join(parts)}</tr>"

    header = "".join(
        f'<th{text_class(sheet, place)} scope="col">{escape(name)}</th>' for place, name in enumerate(sheet.header)
    )
    lines = [
        '<div class="scroll" style="overflow-x: auto; max-width: 100%" tabindex="0">',
        '<table class="results">',
        f"<caption>{escape(sheet.title)}</caption>",
        f"<thead><tr>{header}</tr></thead>",
        "<tbody>",
        *map(row, sheet.rows),
        "</tbody>",
        *(['<tbody class="papers">', *map(row, sheet.apart), "</tbody>"] if sheet.apart else []),
        "</table>",
        "</div>",
        *([f'<p class="about">{escape(sheet.about)}</p>'] if sheet.about else []),
    ]
    return "\n".join(lines)


def text_class(sheet: Sheet, place: int) -> str:
    return ' class="text"' if place < sheet.texts else ""


def to_csv(records: Sequence[dict[str, str]]) -> str:
    """Records under the names that any of them has, in the order of the first that has them."""
    names = list(dict.fromkeys(name for record in records for name in record))
    target = io.StringIO(newline="")
    writer = csv.DictWriter(target, fieldnames=names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return target.getvalue()
