"""Worker threads that run the trials of a sweep, each with one child process at a time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from zoo.core.console import note, progress_bar
from zoo.core.cores import available_cores
from zoo.core.errors import UserError
from zoo.sweeps import children
from zoo.sweeps.axes import Axis, describe, options_of, run_name
from zoo.sweeps.children import FitRun, Outcome, Stops, own_options
from zoo.sweeps.trials import NO_VALUE, Trial, Trials


class Fits:
    """The runs of a sweep.

    Args:
        experiment: prefix of their names.
        axes: settings that are varied.
        command: training command, with the options that all runs share.
        place: folder of all runs.
        metric: validation metric to maximize.
    """

    def __init__(self, experiment: str, axes: Sequence[Axis], command: Sequence[str], place: Path, metric: str) -> None:
        self.experiment, self.axes, self.command, self.place, self.metric = experiment, axes, command, place, metric

    def of(self, trial: Trial, seed: int) -> FitRun:
        name, runs = run_name(self.experiment, self.axes, trial.values), self.place / f"seed{seed}"
        varied = options_of(self.axes, trial.values)
        return FitRun(runs / name, [*self.command, *varied, *own_options(seed, runs, name)], self.metric)

    def folders(self, trial: Trial, seeds: int) -> list[Path]:
        """Folders of the finished runs of a trial."""
        runs = [self.of(trial, seed) for seed in range(seeds)]
        return [run.folder.path for run in runs if run.finished and run.folder is not None]

    def lacking(self, trial: Trial, seeds: int) -> bool:
        return len(self.folders(trial, seeds)) < seeds

    def mean(self, trial: Trial, seeds: int) -> float | None:
        """Mean validation result over all seeds, including those added later; the study's value without runs here."""
        if trial.state != "COMPLETE" or not self.folders(trial, seeds):
            return trial.value
        values = [run.value() for run in (self.of(trial, seed) for seed in range(seeds)) if run.finished]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    def complaint(self, trial: Trial, seeds: int) -> str:
        """Last line and path of the log of a failed run."""
        runs = [self.of(trial, seed) for seed in range(seeds)]
        failed = next((run for run in runs if run.log.is_file() and not run.finished), runs[0])
        return f"{failed.last_line()} ({failed.log})"


class Workers:
    """Runs trials until none are left.

    Args:
        trials: source of the trials.
        fits: runs of the trials.
        seeds: runs per trial.
        jobs: trials that run at the same time.
        prune: stop runs that fall behind.
        timeout: seconds after which no further run is started.
        needs_values: whether a trial without validation results is an error.
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
        self.threads = max(1, available_cores() // jobs)
        self.stops = Stops(threading.Event(), threading.Event())

    def run(self) -> int:
        """Run all trials; returns the number of the signal that stopped them, or 0."""
        self._log_progress()
        with (
            children.handling_signals(self.stops) as received,
            progress_bar("Trials") as bar,
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            self._advance = bar(self.trials.wanted)
            self._advance(self._finished())
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
        left = self.trials.wanted - self._finished()
        if self._out_of_time() and left:
            note(f"timeout reached with {left} trials left; the same command resumes the sweep")
        return received[-1] if received else 0

    def _out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _log_progress(self) -> None:
        latest = self.trials.latest()
        done = sum(trial.state in ("COMPLETE", "PRUNED") for trial in latest)
        if latest:
            note(f"resuming: {done} of {self.trials.wanted} trials are done")

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
        new = trial.state == "RUNNING"  # otherwise it is finished, with fewer seeds than wanted now
        for seed in range(self.seeds):
            # only the first seed is pruned: results of other seeds are not further steps of the same curve
            watch = self.trials.watch(trial) if new and self.prune and seed == 0 else None
            outcome = self._run_seed(trial, seed, watch)
            if outcome is Outcome.STOPPED:
                return
            if outcome is not Outcome.FINISHED:
                if new:
                    self.trials.end(trial, "PRUNED" if outcome is Outcome.PRUNED else "FAIL")
                break
        else:
            if new:
                self._finish(trial)
        if new:
            self._advance(1)

    def _run_seed(self, trial: Trial, seed: int, watch: children.Watch | None) -> Outcome:
        run, began = self.fits.of(trial, seed), time.monotonic()
        known = run.finished
        what = f"{describe(self.fits.axes, trial.values)}, seed {seed}"
        waiting = f"{what}: waiting for another process that is running it"
        outcome = run.go(self.stops, watch, lambda: note(waiting), self.threads)
        if outcome is Outcome.FAILED:
            note(f"{what}: failed: {run.last_line()} ({run.log})")
        elif outcome is Outcome.PRUNED:
            note(f"{what}: pruned after {len(run.validations())} validations")
        elif outcome is Outcome.FINISHED and not known:
            value = run.value()
            result = "no validation result" if value is None else f"{run.metric} {value:.4f}"
            note(f"{what}: {result}, {time.monotonic() - began:.0f} s")
        return outcome

    def _finish(self, trial: Trial) -> None:
        values = [self.fits.of(trial, seed).value() for seed in range(self.seeds)]
        known = [value for value in values if value is not None]
        if not known and self.needs_values:
            self.trials.end(trial, "FAIL")
            raise UserError(
                f"a search needs `metric={self.fits.metric}`, which {self.fits.of(trial, 0).folder} has not logged"
            )
        self.trials.end(trial, "COMPLETE", statistics.fmean(known) if known else NO_VALUE)

    def _finished(self) -> int:
        return sum(trial.state != "RUNNING" for trial in self.trials.latest())
