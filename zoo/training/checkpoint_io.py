"""Atomic checkpoints for the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_fabric.utilities.types import _PATH
from pytorch_lightning.plugins.io import TorchCheckpointIO

from zoo.training.checkpoint import read_checkpoint, write_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Keeps the old file if the process is killed, the power fails or the disk is full during a write.

    Reads with all checks: plain values only, and verified checksums.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(
        self, path: _PATH, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        if "://" in str(path):
            return super().load_checkpoint(path, map_location, weights_only=True)
        return read_checkpoint(Path(path), mmap=False)  # the file may be replaced while its tensors are in use
