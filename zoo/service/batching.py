"""Texts of requests that arrive together are tagged in one call of the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
Answers = list[A | Exception]


@dataclass
class Waiting(Generic[K, A]):
    """A text in the queue."""

    kind: K
    text: str
    answer: asyncio.Future[A]
    since: float


@dataclass
class Batcher(Generic[K, A]):
    """A queue in front of a model that one thread runs.

    A text that finds the model idle does not wait. While the model is busy, others collect, and the next call takes
    them all. If the last call had more than one text, so that there are several clients, the next one waits up to
    `max_wait` for those whose requests are on their way.

    Args:
        run: tags texts of one kind.
        max_batch: most texts in a call.
        max_wait: longest time that a text waits for others while the model is idle, in seconds.
        observe: called after each call with its number of texts, and its duration in seconds.
    """

    run: Callable[[K, list[str]], Sequence[A]]
    max_batch: int = 64
    max_wait: float = 0.005
    observe: Callable[[int, float], None] = lambda texts, seconds: None
    queue: deque[Waiting[K, A]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def submit(self, kind: K, texts: Sequence[str]) -> list[A]:
        """Return the answer to each text."""
        loop = asyncio.get_running_loop()
        mine = [Waiting(kind, text, loop.create_future(), loop.time()) for text in texts]
        self.queue.extend(mine)
        self.arrived.set()
        try:
            return list(await asyncio.gather(*(one.answer for one in mine)))
        finally:  # after an error or a cancellation, nobody waits for the others
            for one in mine:
                one.answer.cancel()

    async def work(self) -> None:
        """Serve the queue until cancelled."""
        loop = asyncio.get_running_loop()
        several = False
        while True:
            await self.arrived.wait()
            if several:
                await self._company(loop)
            batch = self._next()
            several = len(batch) > 1 or bool(self.queue)
            if not batch:
                continue
            start = loop.time()
            answers = await loop.run_in_executor(self.thread, self._answers, [(one.kind, one.text) for one in batch])
            self.observe(len(batch), loop.time() - start)
            for one, answer in zip(batch, answers, strict=True):
                if one.answer.done():
                    continue
                if isinstance(answer, Exception):
                    one.answer.set_exception(answer)
                else:
                    one.answer.set_result(answer)

    async def _company(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until a batch is full, or its first text has waited for `max_wait`."""
        deadline = self.queue[0].since + self.max_wait if self.queue else 0.0
        while len(self.queue) < self.max_batch and (left := deadline - loop.time()) > 0:
            self.arrived.clear()
            try:
                await asyncio.wait_for(self.arrived.wait(), left)
            except TimeoutError:
                return

    def _next(self) -> list[Waiting[K, A]]:
        """Take texts from the queue, without those whose client has gone."""
        batch: list[Waiting[K, A]] = []
        while self.queue and len(batch) < self.max_batch:
            one = self.queue.popleft()
            if not one.answer.done():
                batch.append(one)
        if self.queue:
            self.arrived.set()
        else:
            self.arrived.clear()
        return batch

    def _answers(self, asked: list[tuple[K, str]]) -> Answers[A]:
        """Answers in order, in one call for each kind; runs in the model's thread."""
        found: dict[int, A | Exception] = {}
        for kind in dict.fromkeys(kind for kind, _ in asked):
            rows = [row for row, (other, _) in enumerate(asked) if other == kind]
            found.update(zip(rows, self._safely(kind, [asked[row][1] for row in rows]), strict=True))
        return [found[row] for row in range(len(asked))]

    def _safely(self, kind: K, texts: list[str]) -> Answers[A]:
        """Answers of one kind. A text that the model refuses fails alone."""
        try:
            return list(self.run(kind, texts))
        except Exception as error:
            if len(texts) == 1:
                return [error]
            return [answer for text in texts for answer in self._safely(kind, [text])]
