"""The checkpoint that a run resumes from, and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException

from zoo.core.errors import check_low
from zoo.core.lightning_internals import (
    callbacks_of,
    is_accumulating,
    is_fast_dev_run,
    log_train_step,
    validates_after_this_batch,
)


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` at the end of each epoch and on SIGTERM, after which the run stops.

    A second `ModelCheckpoint` does not fit, because it cannot save by steps and by epochs, and saves at points that
    cannot be resumed from exactly: between accumulated batches, between the last batch and its validation, or (with
    `save_on_exception`) in the middle of a transition.

    Lightning's SIGTERM handler communicates with other processes inside the signal handler. This one only sets a flag
    on any process, and all processes check the flags together after a batch.

    Args:
        every_n_train_steps: also save after every n optimizer steps; 0 disables it.
    """

    def __init__(self, every_n_train_steps: int = 0) -> None:
        check_low(0, every_n_train_steps=every_n_train_steps)
        self.every_n_train_steps = every_n_train_steps
        self.path = Path()
        self.stop_requested = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.path = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        signal.signal(signal.SIGTERM, self.request_stop)  # Lightning restores the former handler after the run

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stop_requested = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch or validates_after_this_batch(trainer):
            return  # Lightning cannot resume between a batch and its validation
        if is_accumulating(trainer):
            return  # a checkpoint does not contain gradients
        stop = trainer.strategy.reduce_boolean_decision(self.stop_requested, all=False)
        if stop or (self.every_n_train_steps and trainer.global_step % self.every_n_train_steps == 0):
            self.save(trainer)
        if stop:
            log_train_step(trainer)
            raise SIGTERMException

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_if_requested(trainer)

    def save(self, trainer: Trainer) -> None:
        if not is_fast_dev_run(trainer):
            trainer.save_checkpoint(self.path, weights_only=False)


@contextmanager
def sigterm_requests_stop(trainer: Trainer) -> Iterator[None]:
    """Handle SIGTERM as during training, for code that runs after it."""
    former = signal.getsignal(signal.SIGTERM)
    for callback in callbacks_of(trainer, LastCheckpoint):
        signal.signal(signal.SIGTERM, callback.request_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def stop_if_requested(trainer: Trainer) -> None:
    """Stop without saving, at points where the run should resume from the existing checkpoint."""
    requested = any(callback.stop_requested for callback in callbacks_of(trainer, LastCheckpoint))
    if trainer.strategy.reduce_boolean_decision(requested, all=False):
        raise SIGTERMException
