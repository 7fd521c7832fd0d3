"""Runs of `zoo fit` as child processes: watched, stopped, and never two of them in one folder."""

from __future__ import annotations

import csv
import ctypes
import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from threading import Event

from datamodules.errors import UserError

POLL_SECONDS = 1.0
STOP_SECONDS = 60.0  # a run that was pruned has so long to stop by itself
FOLDER_VARIABLE = "ZOO_RUN_FOLDER"  # a run's own, which a child of it must not take for its own
PR_SET_PDEATHSIG = 1
C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None

Watch = Callable[[list[float]], bool]  # all validations so far; whether to stop


class Outcome(Enum):
    """How a run ended."""

    FINISHED = auto()
    FAILED = auto()
    PRUNED = auto()
    STOPPED = auto()  # with the whole sweep


class Lock:
    """A file that one process holds; the kernel lets go of it when the process, and all who inherited it, are gone."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"cannot make {path}: {error.strerror}; choose another folder with --out") from error

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self.handle)

    def __enter__(self) -> Lock:
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Stops:
    """What the sweep's signals ask of children: to save and stop, or to end at once."""

    asked: Event
    hurry: Event


@dataclass(frozen=True)
class FitRun:
    """One setting with one seed.

    Args:
        place: folder for its run folder, its log and its lock.
        command: that trains it, or goes on.
        metric: the column of `metrics.csv` that counts.
    """

    place: Path
    command: Sequence[str]
    metric: str

    @property
    def log(self) -> Path:
        return self.place / "fit.log"

    @property
    def folder(self) -> Path | None:
        """The run folder, as soon as there is one."""
        return max((path for path in self.place.glob("*/") if path.is_dir()), default=None)

    @property
    def finished(self) -> bool:
        return self.folder is not None and (self.folder / "metrics.json").is_file()

    def validations(self) -> list[tuple[int, float]]:
        """Stage and value of each validation, in order."""
        return read_validations(self.folder / "metrics.csv", self.metric) if self.folder else []

    def value(self) -> float | None:
        """The best validation in the last stage that has any: that of the checkpoint that was tested."""
        measured = self.validations()
        return max(value for stage, value in measured if stage == measured[-1][0]) if measured else None

    def go(self, stops: Stops, watch: Watch | None, waiting: Callable[[], None], threads: int) -> Outcome:
        """Train, unless that has been done; `watch` may end it, `waiting` is told when another process is at it."""
        lock = Lock(self.place / "fit.lock")
        try:
            told = False
            while not lock.try_acquire():
                if not told:
                    waiting()
                told = True
                if stops.asked.wait(POLL_SECONDS):
                    return Outcome.STOPPED
            outcome = Outcome.FINISHED if self.finished else self._train(stops, watch, lock, threads)
        finally:
            lock.close()
        if outcome is Outcome.FINISHED and watch is not None and watch([value for _, value in self.validations()]):
            return Outcome.PRUNED  # as if it had been seen in time: what is pruned must not depend on speed
        return outcome

    def _train(self, stops: Stops, watch: Watch | None, lock: Lock, threads: int) -> Outcome:
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        environment.pop(FOLDER_VARIABLE, None)
        with self.log.open("a", encoding="utf8") as output:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the sweep, which passes it on
                pass_fds=[lock.handle],  # held on by a child that outlives the sweep
                preexec_fn=end_with_parent,
            )
        while child.poll() is None:
            wait_for(child, POLL_SECONDS)
            if stops.asked.is_set():
                stop(child, stops.hurry)
                return Outcome.FINISHED if self.finished else Outcome.STOPPED
            if watch is not None and watch([value for _, value in self.validations()]):
                stop(child, stops.hurry, STOP_SECONDS)
                return Outcome.PRUNED
        return Outcome.FINISHED if child.returncode == 0 and self.finished else Outcome.FAILED

    def last_line(self) -> str:
        """What the log ends in."""
        lines = self.log.read_text("utf8", errors="replace").split("\n") if self.log.is_file() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing in its log")


def read_validations(file: Path, metric: str) -> list[tuple[int, float]]:
    """Stage and value in each row of a `metrics.csv` that has this metric; a row being written is left out."""
    text = file.read_text("utf8", errors="replace") if file.is_file() else ""
    stage, found = 0, []
    for row in csv.DictReader(text.split("\n")[:-1]):
        if entered := row.get("stage"):
            stage = int(float(entered))
        value = float(row.get(metric) or math.nan)
        if math.isfinite(value):
            found.append((stage, value))
    return found


def end_with_parent() -> None:
    """In the child: a sweep that is killed takes it along; where the system cannot do that, the lock remains."""
    if C_LIBRARY is not None:
        C_LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(child: subprocess.Popen[bytes], hurry: Event, seconds: float = math.inf) -> None:
    """Ask a child and its own children to save and stop; after `seconds`, or in a hurry, they are not asked."""
    send(child, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while child.poll() is None:
        wait_for(child, min(POLL_SECONDS, 0.2))
        if hurry.is_set() or time.monotonic() > deadline:
            send(child, signal.SIGKILL)


def send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it may just have ended
        os.killpg(child.pid, number)  # it leads a group of its own


def wait_for(child: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def check_command(command: Sequence[str]) -> None:
    """Refuse what `zoo fit` does not accept, before anything is started."""
    done = subprocess.run([*command, "--print_config"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        said = next((line for line in lines if line.startswith("error: ")), lines[-1])
        raise UserError(f"zoo fit does not accept the first setting: {said.removeprefix('error: ')}")
