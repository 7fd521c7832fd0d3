"""`zoo reproduce`: the tables and figures of papers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from zoo.analysis.sheets import Sheet, to_markdown, to_terminal
from zoo.commands.sweep_options import Parser, check_not_reserved, join_values, positive
from zoo.commands.usage import page, section
from zoo.commands.verbs import named_options
from zoo.core.console import note
from zoo.core.errors import UserError, did_you_mean
from zoo.core.files import atomic_write
from zoo.sweeps.paper_tables import PaperTable, find_table, read_table, table_files
from zoo.sweeps.reproduction import Reproduction

FIT = (sys.executable, "-m", "zoo", "fit")
USAGE = "zoo reproduce PAPER ELEMENT [options]"
EPILOG = """All other options are passed to `zoo fit`. The same command resumes the rest.

examples:
  zoo reproduce --list
  zoo reproduce httn table2 --only Joint --seeds 3 --data.root aapd/
  zoo reproduce mexml table4 --dry_run
"""


@named_options("out", "list")
def reproduce(argv: list[str], program: Sequence[str] = FIT) -> None:
    """Train the rows of a paper's table or figure and compare them with the paper.

    Args:
        argv: arguments of the command line.
        program: command that trains one row.
    """
    given, rest = parser().parse_known_args(argv)
    if given.list or given.paper is None:
        sys.stdout.write(listed())
        return
    if given.element is None:
        raise UserError(f"which table or figure of {given.paper}? see `zoo reproduce --list`")
    table = find_table(given.paper, given.element)
    options = join_values(rest)
    for option in options:
        check_not_reserved(option.partition("=")[0].removeprefix("--"))
    out = Path(given.out or Path("runs", "papers", f"{given.paper}_{given.element}"))
    job = Reproduction(table, rows_of(table, given.only), given.seeds, out, options, program)
    job.write_experiments()
    if given.dry_run:
        sys.stdout.write("".join(f"{command}\n" for command in job.commands()))
        return
    all_finished, signal_number = job.run()
    show(job, out)
    if signal_number:
        note(f"stopped; to resume: {shlex.join(['zoo', 'reproduce', *argv])}")
        raise SystemExit(128 + signal_number)
    if not all_finished:
        raise SystemExit(1)


def parser() -> Parser:
    made = Parser(USAGE, "Train the rows of a paper's table or figure and compare them with the paper.", EPILOG)
    add = made.add_argument
    add("paper", nargs="?", metavar="PAPER", help="httn, lsfa, ranknet_taug, lightattention or mexml")
    add("element", nargs="?", metavar="ELEMENT", help="table or figure, such as table2")
    add("--list", action="store_true", help="list what there is, and exit")
    add("--only", metavar="ROWS", help="names of rows, separated by commas (default: all rows)")
    add("--seeds", metavar="N", type=positive, default=1, help="runs per row, with seeds 0, 1, ... (default: 1)")
    add("--out", metavar="DIR", help="folder of the runs (default: runs/papers/PAPER_ELEMENT)")
    add("--dry_run", action="store_true", help="write the experiments and print their commands, but train nothing")
    return made


def listed() -> str:
    """All tables and figures by paper."""
    sections: dict[str, dict[str, str]] = {}
    for name, file in table_files().items():
        table = read_table(name, file)
        paper, element = name.split()
        text = f"{table.title.rstrip('.')}; {len(table.rows)} rows, corpus {table.corpus}"
        sections.setdefault(paper, {})[element] = text
    return page(*(section(paper, rows, 14) for paper, rows in sections.items()))


def rows_of(table: PaperTable, only: str | None) -> list[str]:
    names = list(table.rows) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in table.rows]:
        raise UserError(f"--only: {table.name} has no row {unknown[0]!r}; {did_you_mean(unknown[0], list(table.rows))}")
    return names


def show(job: Reproduction, out: Path) -> None:
    """Print the table, and write it and the figure to the folder of the runs."""
    sheet: Sheet = job.sheet()
    sys.stdout.write(to_terminal([sheet]))
    with atomic_write(out / f"{job.table.element}.md") as aside:
        aside.write_text(to_markdown([sheet]), "utf8")
    if job.table.is_figure and job.results():
        draw(job, out / f"{job.table.element}.svg")


def draw(job: Reproduction, file: Path) -> None:
    from zoo.core.extras import is_installed

    if not is_installed("report"):
        note("no figure: `pip install 'xmc-zoo[report]'` draws it")
        return
    from zoo.analysis.canvas import svg_file
    from zoo.analysis.points import bars, point_curves

    rows, columns, x = job.results(), job.table.columns, job.table.x
    figure = bars(rows, columns) if x is None else point_curves(rows, columns, x)
    with atomic_write(file) as aside:
        aside.write_text(svg_file(figure, "figure"), "utf8")
    note(f"figure: {file}")
