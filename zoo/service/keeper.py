"""Keeps the model of a changing checkpoint file current, and teaches it labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from zoo.core.console import note, warn
from zoo.core.errors import UserError, first_line
from zoo.service.hosted import HostedModel, Stamp
from zoo.service.options import ServiceOptions
from zoo.training.tagger import load

Examples = list[tuple[str, list[str]]]  # texts with their labels


class Keeper:
    """Has the current model. A new one takes its place once it is loaded and warmed up.

    Requests that the old one is working on get its answer.

    Args:
        options: settings of the service.
        changed: called after an attempt to load a new version, with whether it succeeded.
    """

    def __init__(self, options: ServiceOptions, changed: Callable[[bool], None] = lambda succeeded: None) -> None:
        self.options, self.changed = options, changed
        self.model = HostedModel(options)
        self.seen = self.model.stamp  # version that was loaded, or failed to load
        self.loading = asyncio.Lock()

    async def watch(self) -> None:
        """Load new versions of the checkpoint, once the file has not changed from one look to the next."""
        before = self.seen
        while True:
            await asyncio.sleep(self.options.reload_every)
            now = Stamp.of(self.options.ckpt)
            if now is not None and now == before and now != self.seen:
                await self.reload()
            before = now

    async def reload(self) -> bool:
        """Load the checkpoint again; if it cannot be read, the old model stays. Tells whether it succeeded."""
        async with self.loading:
            self.seen = Stamp.of(self.options.ckpt)
            try:
                self.model = await asyncio.to_thread(HostedModel, self.options)
            except Exception as error:
                warn(f"{self.options.ckpt} has changed and cannot be loaded; the old model stays: {first_line(error)}")
                self.changed(False)
                return False
            self.seen = self.model.stamp
        note(f"{self.options.ckpt} has changed and is loaded: {len(self.model.names):,} labels")
        self.changed(True)
        return True

    async def learn(self, examples: Examples) -> int:
        """Add labels to the checkpoint, and load it; other workers load it when they see it. Returns the new labels.

        Labels that the model knows are updated.
        """
        if self.model.stamp is None:
            raise UserError("only a checkpoint file can learn labels: save the model to one, and serve that")
        before = set(self.model.names)
        await asyncio.to_thread(extend, self.options, examples)
        if not await self.reload():
            raise UserError("the checkpoint with the new labels cannot be loaded")
        return len(set(self.model.names) - before)


def extend(options: ServiceOptions, examples: Examples) -> None:
    """Rewrite a checkpoint with labels from a few documents; one process at a time."""
    place = Path(options.ckpt).expanduser()
    with FileLock(place.with_name(f".{place.name}.lock")):
        load(place, options.device, options.trust).add_labels(examples, update=True).save(place)
