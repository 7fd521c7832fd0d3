"""The checkpoint that a run resumes from, SIGTERM and Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException

from zoo.core.console import is_first_process
from zoo.core.errors import check_low
from zoo.core.lightning_internals import (
    callbacks_of,
    is_accumulating,
    is_fast_dev_run,
    log_train_step,
    validates_after_this_batch,
)

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Stopped(SIGTERMException):
    """Ends a run that was asked to stop.

    Lightning cleans up and raises it again; of a KeyboardInterrupt it would make exit code 1.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` at the end of each epoch, and on SIGTERM or Ctrl-C, after which the run stops.

    A second `ModelCheckpoint` does not fit, because it cannot save by steps and by epochs, and saves at points that
    cannot be resumed from exactly: between accumulated batches, between the last batch and its validation, or (with
    `save_on_exception`) in the middle of a transition.

    Lightning's SIGTERM handler communicates with other processes inside the signal handler. This one only sets a flag
    on any process, and all processes check the flags together after a batch. A second Ctrl-C stops at once.

    Args:
        every_n_train_steps: also save after every n optimizer steps; 0 disables it.
    """

    def __init__(self, every_n_train_steps: int = 0) -> None:
        check_low(0, every_n_train_steps=every_n_train_steps)
        self.every_n_train_steps = every_n_train_steps
        self.path = Path()
        self.signal_number = 0  # of the signal that asks to stop, if there was one

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.path = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for number in STOPPING:  # Lightning restores the former handlers after the run
            signal.signal(number, self.request_stop)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self.signal_number == signal.SIGINT:
                raise KeyboardInterrupt
            if is_first_process():  # `print` may be what was interrupted
                os.write(2, b"\nstopping after this step; press Ctrl-C again to stop at once\n")
        self.signal_number = signum

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch or validates_after_this_batch(trainer):
            return  # Lightning cannot resume between a batch and its validation
        if is_accumulating(trainer):
            return  # a checkpoint does not contain gradients
        stop = trainer.strategy.reduce_boolean_decision(self.signal_number > 0, all=False)
        if stop or (self.every_n_train_steps and trainer.global_step % self.every_n_train_steps == 0):
            self.save(trainer)
        if stop:
            log_train_step(trainer)
            raise self.stopped(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_if_requested(trainer)

    def stopped(self, trainer: Trainer) -> Stopped:
        """The exception for the signal that any of the processes has received; called by all of them."""
        interrupted = trainer.strategy.reduce_boolean_decision(self.signal_number == signal.SIGINT, all=False)
        return Stopped(signal.SIGINT if interrupted else signal.SIGTERM)

    def save(self, trainer: Trainer) -> None:
        if not is_fast_dev_run(trainer):
            trainer.save_checkpoint(self.path, weights_only=False)


@contextmanager
def signals_request_stop(trainer: Trainer) -> Iterator[None]:
    """Handle SIGTERM and Ctrl-C as during training, for code that runs after it."""
    former = {number: signal.getsignal(number) for number in STOPPING}
    for callback in callbacks_of(trainer, LastCheckpoint):
        for number in STOPPING:
            signal.signal(number, callback.request_stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def stop_if_requested(trainer: Trainer) -> None:
    """Stop without saving, at points where the run should resume from the existing checkpoint."""
    callbacks = callbacks_of(trainer, LastCheckpoint)
    requested = any(callback.signal_number for callback in callbacks)
    if trainer.strategy.reduce_boolean_decision(requested, all=False):
        raise callbacks[0].stopped(trainer)
