"""The service without HTTP: checks what is asked, and answers with the current model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from zoo.core.errors import UserError
from zoo.service.batching import Batcher
from zoo.service.gauges import Gauges
from zoo.service.hosted import Kind
from zoo.service.keeper import Examples, Keeper
from zoo.service.options import ServiceOptions
from zoo.service.problems import RequestError

Answer = dict[str, Any]


class Service:
    """Tags texts with the current model, in batches.

    Args:
        options: settings.
        gauges: where calls of the model are counted.
    """

    def __init__(self, options: ServiceOptions, gauges: Gauges) -> None:
        self.options, self.gauges = options, gauges
        self.keeper = Keeper(options, self._changed)
        gauges.loaded.set_to_current_time()

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the current model, and the limits of requests."""
        options, model = self.options, self.keeper.model
        limits = {
            "max_chars": options.max_chars,
            "max_texts": options.max_texts,
            "max_body_bytes": options.body_bytes,
            "max_requests": options.max_requests,
        }
        return {**model.facts, "loaded": model.loaded.isoformat(), "limits": limits}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the queue and watch the checkpoint."""
        self.batcher: Batcher[Kind, Answer] = Batcher(
            lambda kind, texts: self.keeper.model.tag(texts, kind),
            self.options.max_batch,
            self.options.max_wait / 1000,
            self.gauges.batch,
        )
        tasks = [asyncio.create_task(self.batcher.work()), asyncio.create_task(self.keeper.watch())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            self.batcher.thread.shutdown()

    async def suggest(
        self, texts: Sequence[str], k: int, threshold: float | Literal["auto"], explain: bool = False
    ) -> list[Answer]:
        """Tag texts; the answers have at most k labels with a score of at least `threshold`."""
        self.check(texts)
        if not texts:
            return []
        k = min(k, len(self.keeper.model.names))
        in_model = threshold if explain or threshold == "auto" else 0.0  # so that requests with others share a call
        try:
            answers = await self.batcher.submit(Kind(k, in_model, explain), texts)
        except UserError as error:
            raise RequestError(422, str(error)) from error
        if threshold == in_model:
            return answers
        return [{**one, "labels": [tag for tag in one["labels"] if tag["score"] >= threshold]} for one in answers]

    async def learn(self, examples: Examples) -> dict[str, int]:
        """Teach the model labels from a few documents."""
        if not self.options.learn:
            raise RequestError(403, "learning is off: the service was started without `learn`")
        self.check([text for text, _ in examples])
        try:
            added = await self.keeper.learn(examples)
        except UserError as error:
            raise RequestError(422, str(error)) from error
        return {"added": added, "labels": len(self.keeper.model.names)}

    def check(self, texts: Sequence[str]) -> None:
        """Refuse too many or too long texts."""
        if len(texts) > self.options.max_texts:
            raise RequestError(413, f"{len(texts):,} texts are more than {self.options.max_texts:,} in one request")
        for number, text in enumerate(texts, 1):
            if len(text) > self.options.max_chars:
                detail = f"text {number} has {len(text):,} characters, more than {self.options.max_chars:,}"
                raise RequestError(413, detail)

    def _changed(self, succeeded: bool) -> None:
        self.gauges.reloads.labels("loaded" if succeeded else "failed").inc()
        if succeeded:
            self.gauges.loaded.set_to_current_time()
