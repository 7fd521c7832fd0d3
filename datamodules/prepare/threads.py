"""Background threads for work on a stream of items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 2  # more would be idle, since a single thread produces the items


def map_in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order. Threads work only a few items ahead, so memory is bounded."""
    waiting = deque[tuple[Item, Future[Result]]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > THREADS:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()
