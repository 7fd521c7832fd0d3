"""Worker processes for native libraries."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self

from zoo.core.errors import UserError
from zoo.core.orphans import end_with_parent


class Workers:
    """Runs each task in a forked process of its own, which shares large matrices without a copy.

    For libraries that cannot be interrupted, write to the terminal, or have global state: each process starts from the
    state of this one, its output is discarded, and it can be killed at any time.

    Args:
        work: function of the task number, from 0; its result is sent back.
        tasks: number of tasks, which start in order.
        at_once: number of tasks that run at a time.
    """

    def __init__(self, work: Callable[[int], Any], tasks: int, at_once: int) -> None:
        self.work, self.tasks, self.at_once, self.begun = work, tasks, at_once, 0
        self.running: dict[Connection, BaseProcess] = {}

    def receive(self, seconds: float | None = None) -> list[Any]:
        """Wait for a result, at most `seconds`, and return all that have arrived."""
        while self.begun < self.tasks and len(self.running) < self.at_once:
            self._begin()
        ready = wait(list(self.running), seconds) if self.running else []
        return [self._end(pipe) for pipe in ready if isinstance(pipe, Connection)]

    def _begin(self) -> None:
        if not hasattr(os, "fork"):
            raise UserError("linear engines need forked processes, which Windows lacks: use WSL")
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(self.work, self.begun, sender, os.getpid()), daemon=True)
        process.start()
        sender.close()  # so that the pipe closes when the process ends
        self.running[receiver], self.begun = process, self.begun + 1

    def _end(self, pipe: Connection) -> Any:
        try:
            result = pipe.recv()
        except (EOFError, OSError):  # the process has died
            process = self.running[pipe]
            process.join()
            why = "it may have run out of memory" if process.exitcode == -signal.SIGKILL else "the library crashed"
            raise UserError(
                f"a process that was fitting a linear model died with exit code {process.exitcode}: {why}"
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
            process.kill()  # native code may ignore other signals
            process.join()
            pipe.close()
        self.running.clear()


def _run(work: Callable[[int], Any], number: int, pipe: Connection, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the trainer's handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent kills this one
    end_with_parent(parent)  # which may itself be killed
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    try:
        result = work(number)
    except UserError as error:
        result = error
    except Exception:
        result = RuntimeError(traceback.format_exc())
    pipe.send(result)
