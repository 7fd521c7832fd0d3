"""Runs `zoo fit` in child processes, at most one per folder."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from threading import Event
from types import FrameType

from zoo.core.errors import UserError
from zoo.core.orphans import signal_on_parent_death
from zoo.core.run_folder import RunFolder

POLL_SECONDS = 1.0
STOP_SECONDS = 60.0  # grace period of a pruned run
FOLDER_VARIABLE = "ZOO_RUN_FOLDER"  # of a run that this process is in; its children have their own
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Watch = Callable[[list[float]], bool]  # given all validation results so far, whether to prune the run


class Outcome(Enum):
    """How a run ended."""

    FINISHED = auto()
    FAILED = auto()
    PRUNED = auto()
    STOPPED = auto()  # because the sweep was stopped


class Lock:
    """A file lock; the kernel releases it when the process and all children that inherited it are gone."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"cannot create {path}: {error.strerror}; choose another `out`") from error

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
    """Signals of the sweep to its children: `asked` to save and stop, `forced` to stop at once."""

    asked: Event
    forced: Event


@dataclass(frozen=True)
class FitRun:
    """One configuration with one seed.

    Args:
        place: folder of the run folder, the log and the lock.
        command: command that starts or resumes the run.
        metric: column of `metrics.csv` to maximize.
    """

    place: Path
    command: Sequence[str]
    metric: str

    @property
    def log(self) -> Path:
        return self.place / "fit.log"

    @property
    def folder(self) -> RunFolder | None:
        """The latest run folder; None if the run has not created one."""
        newest = max((path for path in self.place.glob("*/") if path.is_dir()), default=None)
        return None if newest is None else RunFolder(newest)

    @property
    def finished(self) -> bool:
        return self.folder is not None and self.folder.is_finished

    def validations(self) -> list[tuple[int, float]]:
        """Stage and result of each validation, in order."""
        return self.folder.validations(self.metric) if self.folder else []

    def value(self) -> float | None:
        """Best validation result of the last validated stage, which is that of the tested checkpoint."""
        measured = self.validations()
        return max(value for stage, value in measured if stage == measured[-1][0]) if measured else None

    def go(self, stops: Stops, watch: Watch | None, waiting: Callable[[], None], threads: int) -> Outcome:
        """Train unless the run is finished; `waiting` is called if another process holds the lock."""
        lock = Lock(self.place / "fit.lock")
        try:
            if not lock.try_acquire():
                waiting()
                while not lock.try_acquire():
                    if stops.asked.wait(POLL_SECONDS):
                        return Outcome.STOPPED
            outcome = Outcome.FINISHED if self.finished else self._train(stops, watch, lock, threads)
        finally:
            lock.close()
        if outcome is Outcome.FINISHED and watch is not None and watch([value for _, value in self.validations()]):
            return Outcome.PRUNED  # pruning must not depend on how often we look
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
                start_new_session=True,  # the sweep passes on Ctrl-C of a terminal
                pass_fds=[lock.handle],  # a child that outlives the sweep keeps the lock
                preexec_fn=end_with_parent,
            )
        while child.poll() is None:
            wait_for(child, POLL_SECONDS)
            if stops.asked.is_set():
                stop(child, stops.forced)
                return Outcome.FINISHED if self.finished else Outcome.STOPPED
            if watch is not None and watch([value for _, value in self.validations()]):
                stop(child, stops.forced, STOP_SECONDS)
                return Outcome.PRUNED
        return Outcome.FINISHED if child.returncode == 0 and self.finished else Outcome.FAILED

    def last_line(self) -> str:
        """Last line of the log."""
        lines = self.log.read_text("utf8", errors="replace").split("\n") if self.log.is_file() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "empty log")


@contextmanager
def handling_signals(stops: Stops) -> Iterator[list[int]]:
    """Let the first Ctrl-C or SIGTERM ask the children to stop and the second force them; yields those received."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        (stops.forced if stops.asked.is_set() else stops.asked).set()
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def own_options(seed: int, runs: Path, name: str) -> list[str]:
    """Options of `zoo fit` for one child: its seed and folder, no progress bar, and resume if it was stopped."""
    quiet = "--trainer.enable_progress_bar=false"
    return [quiet, f"--seed_everything={seed}", f"--runs={runs}", f"--name={name}", "--ckpt_path=last"]


def end_with_parent() -> None:
    """Called in the child: stop when the sweep is killed. Only Linux supports this; elsewhere the lock remains."""
    signal_on_parent_death(signal.SIGTERM)


def stop(child: subprocess.Popen[bytes], forced: Event, seconds: float = math.inf) -> None:
    """Ask a child and its own children to save and stop; kill them after `seconds`, or once `forced` is set."""
    send(child, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while child.poll() is None:
        wait_for(child, min(POLL_SECONDS, 0.2))
        if forced.is_set() or time.monotonic() > deadline:
            send(child, signal.SIGKILL)


def send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it may have just ended
        os.killpg(child.pid, number)  # the child leads its own process group


def wait_for(child: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def check_command(command: Sequence[str]) -> None:
    """Raise an error if `zoo fit` does not accept a command."""
    done = subprocess.run([*command, "--print_config"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        said = next((line for line in lines if line.startswith("error: ")), lines[-1])
        raise UserError(f"`zoo fit` does not accept the first configuration: {said.removeprefix('error: ')}")
