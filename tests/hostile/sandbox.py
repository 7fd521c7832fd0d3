"""Runs one command of the zoo, or one Python function, in a process of its own that cannot do much harm.

Processes are forked from the driver, which has imported everything, so a run does not pay the imports. Each has limits
on memory and file size, a time limit, and an audit hook that records what it does outside its folder.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.hostile.watch.sitecustomize import FOLDERS, LOG, watch

REPOSITORY = Path(__file__).resolve().parents[2]
WATCH = Path(__file__).resolve().parent / "watch"
POLL_SECONDS = 0.01
GRACE_SECONDS = 4  # for children to notice that their parent has gone
MEMORY = 2 << 30  # resident bytes of a run beyond those of the driver
ADDRESS_SPACE = 12 << 30  # beyond that of the driver; a second line of defence
FILE_SIZE = 1 << 30
OUTPUT = 1 << 20  # bytes of output that are kept
STREAMS = (("stdin", 0, "r", "strict"), ("stdout", 1, "w", "strict"), ("stderr", 2, "w", "backslashreplace"))
KEPT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "VIRTUAL_ENV")  # variables of the person who runs the driver


@dataclass
class Result:
    """What a run left behind."""

    code: int | None  # negative for signals, None for a time-out
    out: str
    err: str
    seconds: float
    events: list[str] = field(default_factory=list)  # see watch/sitecustomize.py
    too_large: bool = False  # killed because of its memory
    left: int = 0  # processes that were still running a moment after the end

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err + self.out


@dataclass
class Kill:
    """A signal to send to a run, or to its whole group, once `when` is true."""

    number: signal.Signals
    when: Callable[[], bool]
    group: bool = False
    times: int = 1


@dataclass
class Sandbox:
    """Where and how runs are executed.

    Args:
        folder: working directory, and with `shared` the only place that a run may write to.
        shared: further folders that a run may write to, such as the cache.
        timeout: seconds after which a run is killed.
        patience: factor of all time limits, for a machine that is busy with other things.
    """

    folder: Path
    shared: Sequence[Path] = ()
    timeout: float = 60
    patience: float = 1
    record: Callable[[Result], object] = lambda result: None  # called after each run

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        home, temporary = self.folder / "home", self.folder / "tmp"
        for place in (home, temporary):
            place.mkdir(exist_ok=True)
        own = {"HOME": home, "TMPDIR": temporary, "ZOO_CACHE": self.folder / "cache", LOG: self.folder / ".events"}
        folders = os.pathsep.join(map(str, [self.folder, *self.shared]))
        fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "WANDB_MODE": "disabled"}
        fixed |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "", FOLDERS: folders}
        path = os.pathsep.join(map(str, (WATCH, REPOSITORY)))
        return kept | fixed | {name: str(place) for name, place in own.items()} | {"PYTHONPATH": path} | dict(given)

    def zoo(self, *args: str, **options: Any) -> Result:
        """Run a command of the zoo in a fork."""
        from zoo.commands.main import main

        def body() -> None:
            sys.argv = ["zoo", *args]
            main(list(args))

        return self.run(body, **options)

    def python(self, *args: str, **options: Any) -> Result:
        """Start a new interpreter, for what a fork cannot show: imports, descriptors, several processes."""
        command = [sys.executable, *args]
        return self.run(lambda: os.execve(command[0], command, dict(os.environ)), forked=False, **options)

    def call(self, function: Callable[[], object], **options: Any) -> Result:
        """Call a function; a `UserError` or `TypeError` of one line counts as an error in one line."""

        def body() -> None:
            from zoo.core.errors import UserError

            try:
                function()
            except (UserError, TypeError) as error:
                sys.stderr.write(f"error: {error}\n")
                raise SystemExit(2) from None

        return self.run(body, **options)

    def run(
        self,
        body: Callable[[], object],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        closed: Sequence[int] = (),
        kill: Kill | None = None,
        file_size: int = FILE_SIZE,
        timeout: float | None = None,
        forked: bool = True,
        pipe_out: bool = False,
    ) -> Result:
        """Run `body` in a child process.

        Args:
            stdin: content of standard input; empty by default.
            env: further environment variables.
            cwd: working directory.
            closed: descriptors that the child does not have.
            kill: signal to send meanwhile.
            file_size: largest file that the child can write, as on a full disk.
            timeout: seconds, by default those of the sandbox.
            forked: whether the child stays a fork; otherwise it starts another program.
            pipe_out: give the child a standard output whose reader has gone.
        """
        files = [self.folder / f".{name}" for name in ("stdin", "stdout", "stderr")]
        files[0].write_bytes(stdin or b"")
        variables = self.variables(env or {})
        (self.folder / ".events").unlink(missing_ok=True)
        start = time.monotonic()
        if not (child := os.fork()):
            try:
                os.setsid()
                _streams(files, closed, pipe_out)
                _limits(file_size)
                os.chdir(cwd or self.folder)
                _become(variables, forked)
                code = _outcome(body)
            except BaseException:  # of the sandbox itself
                traceback.print_exc()
                code = 99
            os._exit(code)
        code, too_large = self._wait(child, start + self.patience * (timeout or self.timeout), kill)
        seconds = time.monotonic() - start
        left = end_processes_in(self.folder.resolve())
        texts = [file.read_bytes()[:OUTPUT].decode(errors="replace") for file in files[1:]]
        log = self.folder / ".events"
        events = log.read_text(errors="replace").splitlines() if log.exists() else []
        result = Result(code, *texts, seconds, list(dict.fromkeys(events)), too_large, left)
        self.record(result)
        return result

    def _wait(self, child: int, end: float, kill: Kill | None) -> tuple[int | None, bool]:
        left, due = kill.times if kill else 0, 0.0
        limit = _resident(os.getpid()) + MEMORY
        while True:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status), False
            now = time.monotonic()
            too_large = _resident(child) > limit
            if now > end or too_large:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None, too_large
            if kill and left and now >= due and kill.when():
                (os.killpg if kill.group else os.kill)(child, kill.number)
                left, due = left - 1, now + 0.3
            time.sleep(POLL_SECONDS)


def _streams(files: Sequence[Path], closed: Sequence[int], pipe_out: bool) -> None:
    for number, (file, flags) in enumerate(
        zip(files, (os.O_RDONLY, *2 * [os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND]), strict=True)
    ):
        handle = os.open(file, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    if pipe_out:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    for number in closed:
        os.close(number)


def _limits(file_size: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, soft in ((resource.RLIMIT_AS, used + ADDRESS_SPACE), (resource.RLIMIT_FSIZE, file_size)):
        resource.setrlimit(kind, (soft, soft))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails with EFBIG, as on a full disk with ENOSPC


def _become(variables: dict[str, str], forked: bool) -> None:
    """Take the surroundings of a process that has just begun."""
    os.environ.clear()
    os.environ.update(variables)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if not forked:
        return
    import tempfile

    import huggingface_hub.constants
    import numpy as np
    import torch
    from pytorch_lightning.strategies.launchers import subprocess_script

    subprocess_script.subprocess = SimpleNamespace(Popen=refuse_ranks)  # type: ignore[attr-defined]
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # the variable is read when it is imported
    faulthandler.disable()  # that of pytest would write to its terminal
    tempfile.tempdir = None
    sys.path[:0] = [os.getcwd()]  # as `python -m zoo` does
    for name, number, mode, errors in STREAMS:
        stream = open(number, mode, encoding="utf8", errors=errors, closefd=False) if is_open(number) else None  # noqa: SIM115
        setattr(sys, name, stream)
    random.seed()
    np.random.seed()
    torch.seed()
    atexit._clear()  # those of the driver
    watch(variables[LOG], variables[FOLDERS].split(os.pathsep))


def refuse_ranks(*args: object, **kwargs: object) -> None:
    """Stop instead of starting the other processes of a distributed run: there may be many of them."""
    sys.stderr.write("stopped before it started further processes\n")
    sys.stderr.flush()
    os._exit(3)


def _outcome(body: Callable[[], object]) -> int:
    """Exit code that an interpreter would have."""
    code = 0
    try:
        body()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            os.write(2, f"Exception ignored in: {stream!r}\n{error!r}\n".encode())
            code = 120
    return code & 0xFF


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is this folder, or below it: the run, and children that it has left."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = os.readlink(entry / "cwd")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if Path(place).is_relative_to(folder) and state != "Z":
            found.append(int(entry.name))
    return found


def end_processes_in(folder: Path) -> int:
    """Give children a moment to end, then kill them; returns how many had to be."""
    end = time.monotonic() + GRACE_SECONDS
    while (left := processes_in(folder)) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(left)
