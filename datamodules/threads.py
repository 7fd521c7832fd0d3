"""Work that goes on beside the reading of a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 2  # more would wait for the items, which one thread makes


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with what `work` makes of it, in order; a few items ahead, so memory does not grow with them."""
    waiting = deque[tuple[Item, Future[Result]]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > THREADS:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()
