"""Threads that take trials of a sweep and run them, each with one child at a time."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from datamodules.errors import UserError
from zoo.sweep import children
from zoo.sweep.axes import Axis, describe, options_of, run_name
from zoo.sweep.children import FitRun, Outcome, Stops
from zoo.sweep.trials import NO_VALUE, Trial, Trials

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Fits:
    """The runs of a sweep.

    Args:
        experiment: begins their names.
        axes: what is varied.
        command: that trains, with what all runs have in common.
        place: folder of their folders.
        metric: that settings are chosen by.
    """

    def __init__(self, experiment: str, axes: Sequence[Axis], command: Sequence[str], place: Path, metric: str) -> None:
        self.experiment, self.axes, self.command, self.place, self.metric = experiment, axes, command, place, metric

    def of(self, trial: Trial, seed: int) -> FitRun:
        name, runs = run_name(self.experiment, self.axes, trial.values), self.place / f"seed{seed}"
        own = [f"--seed_everything={seed}", f"--runs={runs}", f"--name={name}", "--ckpt_path=last"]
        quiet = "--trainer.enable_progress_bar=false"
        varied = options_of(self.axes, trial.values)
        return FitRun(runs / name, [*self.command, *varied, quiet, *own], self.metric)

    def folders(self, trial: Trial, seeds: int) -> list[Path]:
        """Run folders that are finished."""
        runs = [self.of(trial, seed) for seed in range(seeds)]
        return [run.folder for run in runs if run.finished and run.folder is not None]

    def lacking(self, trial: Trial, seeds: int) -> bool:
        return len(self.folders(trial, seeds)) < seeds

    def mean(self, trial: Trial, seeds: int) -> float | None:
        """The validation value over seeds, also over those added later; of a trial of another folder the study's."""
        if trial.state != "COMPLETE" or not self.folders(trial, seeds):
            return trial.value
        values = [run.value() for run in (self.of(trial, seed) for seed in range(seeds)) if run.finished]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    def complaint(self, trial: Trial, seeds: int) -> str:
        """What the log of a failed run ends in, and where it is."""
        runs = [self.of(trial, seed) for seed in range(seeds)]
        failed = next((run for run in runs if run.log.is_file() and not run.finished), runs[0])
        return f"{failed.last_line()} ({failed.log})"


class Workers:
    """Runs trials until there are none left.

    Args:
        trials: where they come from.
        fits: what they are made of.
        seeds: runs of each.
        jobs: trials at the same time.
        prune: stop those that lag behind.
        timeout: seconds after which none begins.
        needs_values: a trial without a validation value is of no use.
    """

    def __init__(
        self,
        trials: Trials,
        fits: Fits,
        seeds: int,
        jobs: int,
        prune: bool,
        timeout: float | None,
        needs_values: bool,
    ) -> None:
        self.trials, self.fits, self.seeds, self.jobs = trials, fits, seeds, jobs
        self.prune, self.needs_values = prune, needs_values
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        self.stops = Stops(threading.Event(), threading.Event())
        self.signal_number = 0
        self.board = Board(trials.wanted * seeds)

    def run(self) -> int:
        """The number of the signal that has ended it, or 0."""
        self._tell_state()
        with self._heeding_signals(), self.board, ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._work) for _ in range(self.jobs)]
            try:
                while wait(futures, timeout=children.POLL_SECONDS, return_when=FIRST_EXCEPTION).not_done:
                    if any(future.done() and future.exception() for future in futures):
                        break
            finally:
                if not all(future.done() for future in futures):
                    self.stops.asked.set()
            for future in futures:
                future.result()
        left = self.trials.wanted - sum(trial.state != "RUNNING" for trial in self.trials.latest())
        if self._out_of_time() and left:
            self.board.say(f"the time is up: {left} settings are left, with which the same command goes on")
        return self.signal_number

    def _out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _tell_state(self) -> None:
        latest = self.trials.latest()
        done = sum(trial.state in ("COMPLETE", "PRUNED") for trial in latest)
        if latest:
            self.board.say(f"going on: {done} of {self.trials.wanted} settings are done")

    def _work(self) -> None:
        while not self.stops.asked.is_set():
            if self._out_of_time():
                return
            trial = self.trials.take(lambda trial: self.fits.lacking(trial, self.seeds))
            if trial is not None:
                try:
                    self._run(trial)
                finally:
                    self.trials.release(trial)
            elif self.trials.others_at_work():
                self.stops.asked.wait(children.POLL_SECONDS)
            else:
                return

    def _run(self, trial: Trial) -> None:
        new = trial.state == "RUNNING"  # otherwise finished, with fewer seeds than are asked for now
        for seed in range(self.seeds):
            # only the first seed decides: validations of others are no further steps of the same curve
            watch = self.trials.watch(trial) if new and self.prune and seed == 0 else None
            outcome = self._run_seed(trial, seed, watch)
            if outcome is Outcome.STOPPED:
                return
            if outcome is not Outcome.FINISHED:
                if new:
                    self.trials.end(trial, "PRUNED" if outcome is Outcome.PRUNED else "FAIL")
                self._show_progress()
                return
        if new:
            self._finish(trial)
        self._show_progress()

    def _run_seed(self, trial: Trial, seed: int, watch: children.Watch | None) -> Outcome:
        run, began = self.fits.of(trial, seed), time.monotonic()
        known = run.finished
        what = f"{describe(self.fits.axes, trial.values)}, seed {seed}"
        waiting = f"{what}: waiting for a process that is still at it"
        outcome = run.go(self.stops, watch, lambda: self.board.say(waiting), self.threads)
        if outcome is Outcome.FAILED:
            self.board.say(f"{what}: failed: {run.last_line()} ({run.log})")
        elif outcome is Outcome.PRUNED:
            self.board.say(f"{what}: pruned after {len(run.validations())} validations")
        elif outcome is Outcome.FINISHED and not known:
            value = run.value()
            said = "no validation value" if value is None else f"{run.metric} {value:.4f}"
            self.board.say(f"{what}: {said}, {time.monotonic() - began:.0f} s")
        return outcome

    def _finish(self, trial: Trial) -> None:
        values = [self.fits.of(trial, seed).value() for seed in range(self.seeds)]
        known = [value for value in values if value is not None]
        if not known and self.needs_values:
            self.trials.end(trial, "FAIL")
            file = self.fits.of(trial, 0).folder
            raise UserError(
                f"a search goes by {self.fits.metric}, which {file}/metrics.csv does not have: see --metric"
            )
        self.trials.end(trial, "COMPLETE", statistics.fmean(known) if known else NO_VALUE)

    def _show_progress(self) -> None:
        over = sum(trial.state != "RUNNING" for trial in self.trials.latest())
        self.board.show(over * self.seeds)

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        def heed(number: int, frame: FrameType | None) -> None:
            (self.stops.hurry if self.stops.asked.is_set() else self.stops.asked).set()
            self.signal_number = number

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, heed) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


class Board:
    """What a person sees of a sweep: a bar over runs at a terminal, and a line for each run that ends."""

    def __init__(self, runs: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.console = Console(stderr=True)
        self.bar = Progress(*columns, TimeElapsedColumn(), console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("Runs", total=runs)

    def __enter__(self) -> Board:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, line: str) -> None:
        self.console.print(f"[dim]·[/] {escape(line)}", highlight=False, soft_wrap=True)

    def show(self, runs: int) -> None:
        self.bar.update(self.task, completed=runs)
