"""Runs the rows of a paper's table, and lays out the results as in the paper."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from zoo.analysis.comparison import ComparedRuns
from zoo.analysis.sheets import Cell, Sheet
from zoo.analysis.tables import written
from zoo.core.console import note, progress_bar
from zoo.core.cores import available_cores
from zoo.core.errors import UserError
from zoo.core.files import atomic_write
from zoo.core.metrics import MONITOR
from zoo.core.run_folder import CHECKPOINTS, RunFolder
from zoo.sweeps.children import FitRun, Outcome, Stops, handling_signals, own_options
from zoo.sweeps.paper_tables import PaperTable, Row

ILLEGAL = re.compile(r"[^A-Za-z0-9._+=-]+")
OPTIONS = "# options: "


@dataclass(frozen=True)
class Reproduction:
    """The runs of a table.

    Args:
        table: with all its rows.
        only: names of the rows to run, and of those that they start from.
        seeds: runs per row, with seeds 0, 1, ...
        out: folder of the runs.
        options: options of `zoo fit` for all runs.
        program: command that trains.
    """

    table: PaperTable
    only: Sequence[str]
    seeds: int
    out: Path
    options: Sequence[str]
    program: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        """Rows to run, in order; a row that another one starts from is included."""
        wanted = set(self.only)
        for row in reversed(self.table.rows.values()):
            if row.name in wanted and row.start:
                wanted.add(row.start.row)
        return [row for row in self.table.rows.values() if row.name in wanted]

    def file_of(self, row: Row) -> Path:
        return self.out / "experiments" / f"{safe(row.name)}.yaml"

    def run_of(self, row: Row, seed: int) -> FitRun:
        runs, name = self.out / f"seed{seed}", safe(row.name)
        own = own_options(seed, runs, name)
        command = [*self.program, "--config", str(self.file_of(row)), *self.options, *own]
        if row.start:
            first = self.run_of(self.table.rows[row.start.row], seed).folder
            folder = Path("RUN") if first is None else first.path  # it is not there before the first row has run
            command += [f"--from_stage={row.start.stage}", f"--ckpt={folder / CHECKPOINTS / row.start.after}.ckpt"]
        return FitRun(runs / name, command, MONITOR)

    def write_experiments(self) -> None:
        """Write the rows as experiment files; refuses a folder with runs of other settings."""
        options = f"{OPTIONS}{shlex.join(self.options)}\n" if self.options else ""
        for row in self.rows:
            text = f"# {self.table.name}: {row.name}\n{options}{yaml.safe_dump(row.experiment, sort_keys=False)}"
            file = self.file_of(row)
            if file.is_file() and any(self.out.glob(f"seed*/{safe(row.name)}")):
                if settings_in(file.read_text("utf8")) == settings_in(text):
                    continue  # also of another table, which shares the row
                raise UserError(f"{self.out} has runs of {row.name!r} with other settings: choose another `out`")
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as aside:
                aside.write_text(text, "utf8")

    def commands(self) -> Iterator[str]:
        """Commands of all runs, as a user would type them."""
        for row in self.rows:
            for seed in range(self.seeds):
                yield shlex.join(["zoo", "fit", *self.run_of(row, seed).command[len(self.program) :]])

    def run(self) -> tuple[bool, int]:
        """Train what is not finished; returns whether all runs are, and the signal that stopped them, or 0."""
        runs = [(row, seed) for seed in range(self.seeds) for row in self.rows]
        stops, all_finished = Stops(threading.Event(), threading.Event()), True
        with handling_signals(stops) as received, progress_bar(self.table.name) as bar:
            advance = bar(len(runs))
            for row, seed in runs:
                outcome = self._train(row, seed, stops)
                if outcome is Outcome.STOPPED:
                    return False, received[-1]
                all_finished &= outcome is Outcome.FINISHED
                advance(1)
        return all_finished, 0

    def _train(self, row: Row, seed: int, stops: Stops) -> Outcome:
        what = f"{row.name}, seed {seed}"
        if row.start and not self.run_of(self.table.rows[row.start.row], seed).finished:
            note(f"{what}: skipped, since {row.start.row!r} is not finished")
            return Outcome.FAILED
        run = self.run_of(row, seed)
        if not run.finished:
            note(f"{what}: training; log: {run.log}")
        waiting = f"{what}: waiting for another process that is running it"
        outcome = run.go(stops, None, lambda: note(waiting), available_cores())
        if outcome is Outcome.FAILED:
            note(f"{what}: failed: {run.last_line()} ({run.log})")
        return outcome

    def results(self) -> dict[str, ComparedRuns]:
        """Finished runs of each row, also of rows that this command does not run."""
        found = {name: ComparedRuns({"row": name}) for name in self.table.rows}
        for name, row in self.table.rows.items():
            for folder in (self.run_of(row, seed).folder for seed in range(self.seeds)):
                if folder is not None and folder.is_finished:
                    found[name].runs.append(RunFolder.read(folder.path))
        return {name: row for name, row in found.items() if row.runs}

    def sheet(self) -> Sheet:
        """The table in the paper's layout: each metric of our runs, next to the printed one."""
        results, printed = self.results(), self.table.printed()
        rows = []
        for name in self.table.rows:
            if name not in results and name not in printed:
                continue
            cells = [Cell(name)]
            for column in self.table.columns:
                value = results[name].value(column) if name in results else None
                cells.append(Cell("" if value is None else written(column, value)))
                cells += [Cell(printed.get(name, {}).get(column, ""))] if printed else []
            rows.append(cells)
        rows += [  # methods of the paper that the zoo does not have
            [Cell(name), *(Cell(text) for column in self.table.columns for text in ("", values.get(column, "")))]
            for name, values in printed.items()
            if name not in self.table.rows
        ]
        titles = [(column, "printed") if printed else (column,) for column in self.table.columns]
        data = ", ".join(dict.fromkeys(run.data for row in results.values() for run in row.runs)) or "no finished runs"
        options = f", with {shlex.join(self.options)}" if self.options else ""
        about = f"printed: {self.table.paper} on {self.table.corpus}; " if printed else ""
        about += f"ours: {data}{options}"
        header = [self.table.x or "method", *(title for pair in titles for title in pair)]
        return Sheet(f"{self.table.title} (in %)", header, rows, 1, about=about)


def settings_in(text: str) -> tuple[list[str], object]:
    """Options and settings of a written experiment; the table that it is of does not count."""
    return [line for line in text.splitlines() if line.startswith(OPTIONS)], yaml.safe_load(text)


def safe(name: str) -> str:
    """A row's name as the name of a file."""
    return ILLEGAL.sub("_", name).strip("._") or "row"
