"""The papers' methods at the papers' sizes: a queue of runs that resumes where it was stopped.

    python benchmarks/papers.py --minutes 150           # train; the same command resumes
    python benchmarks/papers.py --ledger                # what is done, running and left, and what it cost
    python benchmarks/papers.py --only bills --jobs 2   # two runs at a time, one thread each
    python benchmarks/papers_pages.py                   # write the tables and figures of the docs from finished runs

papers.yaml has the corpora and the runs in order. A run is a row of a table of `zoo
reproduce` with the paper's settings, except for the options that papers.yaml gives to its corpus or to the run itself.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml
from jobs import markdown

from zoo.core.files import atomic_write
from zoo.core.run_folder import RunFolder
from zoo.sweeps.children import FitRun, Outcome, Stops, handling_signals
from zoo.sweeps.paper_tables import PaperTable, find_table
from zoo.sweeps.reproduction import Reproduction

PLAN = Path(__file__).with_name("papers.yaml")
PROGRAM = (sys.executable, "-m", "zoo", "fit")
IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class PaperRun:
    """A row of a paper's table with one seed, on a corpus that stands in for the paper's.

    Args:
        corpus: key in papers.yaml.
        table: such as `httn table2`.
        row: of this table.
        name: of the run, if it changes what the row's name says; else the row's.
        variant: part of the folder's name, for runs of one row with other options.
        seed: of the run.
        hours: estimate for one idle core; None if it takes minutes.
        deviations: what differs from the paper beyond the corpus.
        out: folder of all runs of the queue.
        options: of `zoo fit`.
    """

    corpus: str
    table: str
    row: str
    name: str
    variant: str
    seed: int
    hours: float | None
    deviations: str
    out: Path
    options: tuple[str, ...]

    @property
    def key(self) -> str:
        variant = f" {self.variant}" if self.variant else ""
        return f"{self.corpus} / {self.table}{variant} / {self.row} / {self.seed}"

    @cached_property
    def job(self) -> Reproduction:
        folder = self.out / self.corpus / "_".join([*self.table.split(), *self.variant.split()])
        return Reproduction(self.paper_table, [self.row], self.seed + 1, folder, self.options, PROGRAM)

    @cached_property
    def paper_table(self) -> PaperTable:
        return find_table(*self.table.split())

    @property
    def fit(self) -> FitRun:
        return self.job.run_of(self.paper_table.rows[self.row], self.seed)

    @property
    def ready(self) -> bool:
        """Whether the run that this one starts from, if any, is finished."""
        start = self.paper_table.rows[self.row].start
        return start is None or self.job.run_of(self.paper_table.rows[start.row], self.seed).finished

    @property
    def folder(self) -> RunFolder | None:
        """The finished run."""
        fit = self.fit
        return RunFolder.read(fit.folder.path) if fit.finished and fit.folder else None


def planned(out: Path, only: Sequence[str] = ()) -> Iterator[PaperRun]:
    """All runs in order, or those whose keys contain all texts of `only`."""
    plan = yaml.safe_load(PLAN.read_text("utf8"))
    for entry in plan["queue"]:
        groups = (plan["groups"][name] for name in entry.get("with", []))
        shared = plan["corpora"][entry["corpus"]]["options"]
        options = [option for part in (shared, *groups, entry.get("options", [])) for option in part]
        given = tuple(os.path.expandvars(option.replace("$CORPUS", entry["corpus"])) for option in options)
        for seed in entry.get("seeds", [0]):
            for row, name in zip(entry["rows"], entry.get("names", entry["rows"]), strict=True):
                about = (str(entry.get("variant", "")), seed, entry.get("hours"), entry.get("deviations", ""))
                run = PaperRun(entry["corpus"], entry["table"], row, name, *about, out, given)
                if all(text in run.key for text in only):
                    yield run


class Ledger:
    """Seconds and outcome of each run, over all its parts."""

    def __init__(self, file: Path) -> None:
        self.file, self.lock = file, threading.Lock()
        self.entries: dict[str, dict[str, Any]] = json.loads(file.read_text("utf8")) if file.is_file() else {}
        self.used = children_seconds()

    def add(self, run: PaperRun, seconds: float, outcome: str) -> None:
        with self.lock:
            used, self.used = self.used, children_seconds()
            entry = self.entries.setdefault(run.key, {"seconds": 0.0, "cpu_seconds": 0.0, "parts": 0})
            entry["seconds"] += seconds
            entry["cpu_seconds"] += self.used - used
            entry["parts"] += 1
            entry["outcome"] = outcome
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.file) as aside:
                aside.write_text(json.dumps(self.entries, indent=1) + "\n", "utf8")

    def state(self, run: PaperRun) -> str:
        fit = run.fit
        if fit.finished:
            return "done"
        if is_locked(fit.place / "fit.lock"):
            return "running"
        outcome = self.entries.get(run.key, {}).get("outcome")
        return "failed" if outcome == "failed" else "interrupted" if fit.folder else "left"

    def table(self, runs: Sequence[PaperRun]) -> str:
        states = [self.state(run) for run in runs]
        rows = []
        for run, state in zip(runs, states, strict=True):
            entry = self.entries.get(run.key, {})
            cost = [f"{entry[key]:,.0f}" if key in entry else "" for key in ("seconds", "cpu_seconds")]
            hours = f"{run.hours:g}" if run.hours and state != "done" else ""
            rows.append([run.corpus, run.table, run.name, str(run.seed), state, *cost, progress(run, state), hours])
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        header = [
            "corpus",
            "table",
            "row",
            "seed",
            "state",
            "seconds",
            "CPU seconds",
            "epochs",
            "hours on an idle core",
        ]
        return f"{markdown(header, rows)}\n\n{counts}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def children_seconds() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_locked(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def progress(run: PaperRun, state: str) -> str:
    """Epochs that a run has trained; empty without epochs."""
    if state in ("left", "failed") or (folder := run.fit.folder) is None:
        return ""
    rows = [row for row in folder.log_rows if any(value for name, value in row.items() if name.startswith("train/"))]
    return str(max(int(float(row["epoch"])) for row in rows) + 1) if rows else ""


class Queue:
    """Workers that train the first run that is left.

    Args:
        runs: returns all runs; it is called before each, so that edits of papers.yaml take effect.
        ledger: of all runs.
    """

    def __init__(self, runs: Callable[[], Iterator[PaperRun]], ledger: Ledger) -> None:
        self.runs, self.ledger, self.lock = runs, ledger, threading.Lock()
        self.stops = Stops(threading.Event(), threading.Event())
        self.taken: set[str] = set()
        self.working = 0

    def take(self) -> PaperRun | None:
        with self.lock:
            left = (run for run in self.runs() if run.key not in self.taken and not run.fit.finished)
            chosen = next((run for run in left if run.ready), None)
            if chosen:
                self.taken.add(chosen.key)
                self.working += 1
            return chosen

    def work(self) -> None:
        while not self.stops.asked.is_set():
            if run := self.take():
                try:
                    self.train(run)
                finally:
                    self.working -= 1
            elif self.working:  # runs may start from one that another worker trains
                self.stops.asked.wait(IDLE_SECONDS)
            else:
                return

    def train(self, run: PaperRun) -> None:
        run.job.write_experiments()
        say(f"{run.key}: training; log: {run.fit.log}")
        start = time.monotonic()
        outcome = run.fit.go(self.stops, None, lambda: say(f"{run.key}: another process is training it"), threads=1)
        seconds = time.monotonic() - start
        self.ledger.add(run, seconds, outcome.name.lower())
        failed = f": {run.fit.last_line()}" if outcome is Outcome.FAILED else ""
        say(f"{run.key}: {outcome.name.lower()} after {seconds:,.0f} s{failed}")

    def run(self, jobs: int, minutes: float | None) -> None:
        timer = threading.Timer(60 * (minutes or 0), self.stops.asked.set)
        timer.daemon = True
        if minutes is not None:
            timer.start()
        with handling_signals(self.stops), ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.work) for _ in range(jobs)]
            for future in futures:
                future.result()
        timer.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    parser.add_argument("--jobs", type=int, choices=[1, 2], default=1, help="runs at a time, with one thread each")
    parser.add_argument("--minutes", type=float, help="stop after this time; runs save and can be resumed")
    parser.add_argument("--only", nargs="+", default=[], help="texts that the name of a run must contain")
    parser.add_argument("--ledger", action="store_true", help="show the ledger, and train nothing")
    parser.add_argument("--commands", action="store_true", help="print the commands, and train nothing")
    options = parser.parse_args()
    runs = partial(planned, options.out, options.only)
    ledger = Ledger(options.out / "ledger.json")
    if options.commands:
        for run in runs():
            run.job.write_experiments()
            print(" ".join(["zoo", "fit", *run.fit.command[len(PROGRAM) :]]))
        return
    if not options.ledger:
        Queue(runs, ledger).run(options.jobs, options.minutes)
    print(ledger.table(list(runs())))


if __name__ == "__main__":
    main()
