"""All uses of private or undeclared attributes of Lightning.

The version bound in pyproject.toml is the newest version that these were tested with. Each docstring says why the
public API is not enough; if a new version breaks a function, tests/unit/callbacks/test_lightning_internals.py names it.
"""

from __future__ import annotations

import os
from contextlib import ContextDecorator
from typing import Any, TypeVar

import torch
from pytorch_lightning import Callback, LightningDataModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.strategies import DDPStrategy

C = TypeVar("C", bound=Callback)


def global_seed() -> int:
    """Return the seed of `seed_everything`, 0 if it was not called; Lightning keeps it in an environment variable."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


# Attributes that `Trainer` sets and does not declare


def datamodule_of(trainer: Trainer) -> LightningDataModule | None:
    data: LightningDataModule | None = trainer.datamodule  # type: ignore[attr-defined]
    return data


def callbacks_of(trainer: Trainer, kind: type[C]) -> list[C]:
    """Return the callbacks of this class."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, kind)]


def is_fast_dev_run(trainer: Trainer) -> bool:
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def epochs_done(trainer: Trainer) -> int:
    """Return the number of finished epochs; in `on_train_epoch_end`, `current_epoch` does not count the current one."""
    return int(trainer.fit_loop.epoch_progress.current.processed)  # type: ignore[attr-defined]


def batches_to_skip(trainer: Trainer) -> int:
    """Return the number of batches of the epoch that were trained before a resume; Lightning does not skip them."""
    loop = trainer.fit_loop
    return loop.epoch_loop.batch_progress.current.ready if loop.restarting else 0


# The training loop


def is_accumulating(trainer: Trainer) -> bool:
    """Whether the last batch ended without an optimizer step; no public attribute tells."""
    return trainer.fit_loop._should_accumulate()


def validates_after_this_batch(trainer: Trainer) -> bool:
    """Whether validation follows the current batch, which depends on four trainer settings."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def log_train_step(trainer: Trainer) -> None:
    """Log the metrics of the current step now; Lightning does so after the callbacks, one of which may stop the run."""
    trainer._logger_connector.update_train_step_metrics()


def logging_step(trainer: Trainer) -> int:
    """Return the step that Lightning logs with; `global_step` counts the steps of all optimizers."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def reload_train_dataloader(trainer: Trainer) -> None:
    """Create the dataloader again at once; `reload_dataloaders_every_n_epochs` works only between epochs."""
    loop = trainer.fit_loop
    loop.restarting = False  # or the new loader would skip the batches that were read from the old one
    loop._combined_loader = None
    loop.setup_data()


def allow_clipping(optimizer: torch.optim.Optimizer) -> None:
    """Let Lightning clip the gradients of a fused optimizer; it refuses if the optimizer can unscale gradients."""
    vars(optimizer)["_step_supports_amp_scaling"] = False


def loaded_states(trainer: Trainer, name: str) -> list[Any]:
    """States in the checkpoint that is being restored; Lightning ignores those without, or beyond, their objects."""
    states: list[Any] = trainer._checkpoint_connector._loaded_checkpoint.get(name, [])
    return states


def around_restore(trainer: Trainer, context: ContextDecorator) -> None:
    """Run what restores states of a checkpoint within a context; the hooks come before, and between, these parts."""
    connector = trainer._checkpoint_connector
    for name in ("_restore_modules_and_callbacks", "restore_training_state"):
        setattr(connector, name, context(getattr(connector, name)))


# DDP


def set_ddp_default(strategy: DDPStrategy, name: str, value: bool) -> None:
    """Set an argument of DistributedDataParallel if the user has not; a strategy given by name takes no arguments."""
    strategy._ddp_kwargs.setdefault(name, value)


def skip_ddp(strategy: DDPStrategy) -> None:
    """Do not wrap the model: DistributedDataParallel refuses one without trainable parameters (a linear engine)."""
    strategy.configure_ddp = lambda: None  # type: ignore[method-assign]


# Progress bar and loggers


class DescribedProgressBar(RichProgressBar):
    """Progress bar with a public hook for the description of an epoch; Lightning's method is private."""

    def describe_epoch(self, current_epoch: int) -> str:
        return super()._get_train_description(current_epoch)

    def _get_train_description(self, current_epoch: int) -> str:
        return self.describe_epoch(current_epoch)


def is_progress_stopped(bar: RichProgressBar) -> bool:
    """Whether the bar is closed; `progress` still refers to the old display then."""
    return bar._progress_stopped


def drop_anonymous(logger: WandbLogger) -> None:
    """Remove a deprecated argument that Lightning always passes to W&B, which warns about it."""
    logger._wandb_init.pop("anonymous", None)
