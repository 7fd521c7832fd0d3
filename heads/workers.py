"""Work in processes of its own, beside the one that trains."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Self

from datamodules.errors import UserError

PR_SET_PDEATHSIG = 1


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Does every task in a forked process of its own: it sees the same large matrices without a copy.

    For libraries that cannot be stopped, write to the terminal, or keep a state from one call to the next: each
    process begins with the state of this one, is heard by nobody, and can be ended at any moment.

    Args:
        work: gets the number of a task, from 0; what it returns is sent here.
        tasks: how many there are; they begin in order.
        at_once: how many run at a time.
    """

    def __init__(self, work: Callable[[int], Any], tasks: int, at_once: int) -> None:
        self.work, self.tasks, self.at_once, self.begun = work, tasks, at_once, 0
        self.running: dict[Connection, ForkProcess] = {}

    def receive(self, seconds: float | None = None) -> list[Any]:
        """Results that have come; waits for one, at most so long."""
        while self.begun < self.tasks and len(self.running) < self.at_once:
            self._begin()
        ready = wait(list(self.running), seconds) if self.running else []
        return [self._end(pipe) for pipe in ready if isinstance(pipe, Connection)]

    def _begin(self) -> None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(self.work, self.begun, sender), daemon=True)
        process.start()
        sender.close()  # so that the end of the process ends the pipe
        self.running[receiver], self.begun = process, self.begun + 1

    def _end(self, pipe: Connection) -> Any:
        try:
            result = pipe.recv()
        except (EOFError, OSError):  # nothing has come, or not all of it
            process = self.running[pipe]
            process.join()
            why = "perhaps for want of memory" if process.exitcode == -signal.SIGKILL else "the library has given up"
            raise UserError(
                f"a process that was fitting a linear model has ended before its time ({process.exitcode}): {why}"
            ) from None
        self.running.pop(pipe).join()
        pipe.close()
        if isinstance(result, Exception):
            raise result
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self.running.items():
            process.kill()  # it may be deep in a library that hears no other signal
            process.join()
            pipe.close()
        self.running.clear()


def _run(work: Callable[[int], Any], number: int, pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the trainer has put there
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first one ends the others
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # where that one is killed, nobody else does
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        result = work(number)
    except UserError as error:
        result = error
    except Exception:
        result = RuntimeError(traceback.format_exc())
    pipe.send(result)
