"""Atomic checkpoints for the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_fabric.utilities.types import _PATH
from pytorch_lightning.plugins.io import TorchCheckpointIO

from zoo.training.checkpoint import write_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Keeps the old file if the process is killed, the power fails or the disk is full during a write."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        write_checkpoint(checkpoint, Path(path))
