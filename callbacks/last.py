"""The checkpoint that a run goes on from."""

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


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` at the end of each epoch, and on SIGTERM, after which the run stops.

    Lightning's own `save_last` writes only where there is a new best. Its SIGTERM handler talks to the other processes
    from within the signal, in the middle of whatever they are doing; here the signal is only noted, to any one of
    the processes, and all of them agree after the batch.

    Args:
        every_n_train_steps: write also after so many steps; 0 never does.
    """

    def __init__(self, every_n_train_steps: int = 0) -> None:
        self.every_n_train_steps = every_n_train_steps
        self.path = Path()
        self.stop_asked = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.path = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        signal.signal(signal.SIGTERM, self._note)  # Lightning puts the former handler back when it is done

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.stop_asked = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop
        if trainer.is_last_batch or loop.epoch_loop._should_check_val_fx(loop._data_fetcher):  # type: ignore[arg-type]
            return  # validation comes first, and Lightning could not resume between the two
        if loop._should_accumulate():
            return  # a checkpoint has no gradients
        stop = anyone_asked(trainer, self.stop_asked)
        if stop or (self.every_n_train_steps and trainer.global_step % self.every_n_train_steps == 0):
            self.save(trainer)
        if stop:
            trainer._logger_connector.update_train_step_metrics()  # Lightning's next step would have been to log them
            raise SIGTERMException

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_if_asked(trainer)

    def save(self, trainer: Trainer) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(self.path, weights_only=False)


@contextmanager
def heeding_sigterm(trainer: Trainer) -> Iterator[None]:
    """The signal is noted, for `stop_if_asked`, also where training was skipped and Lightning no longer listens."""
    former = signal.getsignal(signal.SIGTERM)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, LastCheckpoint):
            signal.signal(signal.SIGTERM, callback._note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def anyone_asked(trainer: Trainer, asked: bool) -> bool:
    return trainer.strategy.reduce_boolean_decision(asked, all=False) if trainer.world_size > 1 else asked


def stop_if_asked(trainer: Trainer) -> None:
    """Stop without saving: for places where the newest checkpoint is the one to go on from."""
    callbacks = trainer.checkpoint_callbacks
    if anyone_asked(trainer, any(c.stop_asked for c in callbacks if isinstance(c, LastCheckpoint))):
        raise SIGTERMException
