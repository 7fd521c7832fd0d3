"""Group the items of an iterable, without waiting for those that have not arrived."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
WAIT_SECONDS = 0.05  # for further items after the first


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last one may be shorter."""
    source = iter(items)
    while window := list(islice(source, size)):
        yield window


@dataclass(frozen=True)
class End:
    """The iterable is exhausted, or has raised an error."""

    error: BaseException | None = None


def arriving(items: Iterable[T], size: int, wait: float = WAIT_SECONDS) -> Iterator[list[T]]:
    """Yield lists of at most `size` items: what is there `wait` seconds after the first of a list arrived.

    A thread iterates over `items`, at most `size` items ahead. Its errors are raised here, after the items before them.
    """
    queue: Queue[T | End] = Queue(size)
    stopped = Event()

    def read() -> None:
        end = End()
        try:
            for item in items:
                if stopped.is_set():
                    return
                queue.put(item)
        except BaseException as error:  # of any kind: it is raised by the main thread
            end = End(error)
        if not stopped.is_set():
            queue.put(end)

    # A daemon, since nothing can interrupt a read from a pipe
    Thread(target=read, name="reader", daemon=True).start()
    try:
        last = queue.get()
        while not isinstance(last, End):
            window, deadline = [last], time.monotonic() + wait
            while len(window) < size:
                try:
                    last = queue.get(timeout=max(deadline - time.monotonic(), 0))
                except Empty:
                    break
                if isinstance(last, End):
                    break
                window.append(last)
            yield window
            if not isinstance(last, End):
                last = queue.get()
        if last.error is not None:
            raise last.error
    finally:
        stopped.set()
        while not queue.empty():  # the reader may wait for room
            queue.get_nowait()
