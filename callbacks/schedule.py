"""Several training stages in one `Trainer.fit`."""

from __future__ import annotations

import os
from dataclasses import replace
from operator import attrgetter
from types import NoneType
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from rich.table import Table
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from callbacks.last_checkpoint import signals_request_stop, stop_if_requested
from callbacks.stages import check_pending, check_stages
from callbacks.transition import (
    TrainerContext,
    broadcast_state,
    check_strategy,
    count_documents,
    derive_seed,
    frozen_modules,
    rebuild_training_state,
    reset_best_checkpoint,
    resume_at_next_epoch,
    save_best_if_none,
    trained_state,
    validate_and_save,
)
from callbacks.warmup import set_warmup_steps
from datamodules import TextDataModule
from zoo.core.console import note
from zoo.core.errors import UserError, check_low
from zoo.core.lightning_internals import (
    callbacks_of,
    epochs_done,
    global_seed,
    is_fast_dev_run,
    logging_step,
    reload_train_dataloader,
)
from zoo.training.module import ZooModule
from zoo.training.stage import Stage

STORED: dict[str, tuple[type, ...]] = {  # attributes of `StageSchedule` in checkpoints
    "first_epoch": (int,),
    "ended": (int, NoneType),
    "best": (float, NoneType),
    "best_weights": (dict,),
    "bad_validations": (int,),
}


class StageSchedule(Callback):
    """Runs the stages one after the other, on any number of processes, and resumes bit-exactly.

    A stage is entered at the start of an epoch. The checkpoint at the end of the previous epoch therefore has the
    weights from before the transition, and a resume repeats the transition from the same state.

    Args:
        stages: stages in order; None for a single stage `main` that is limited only by the trainer.
        from_stage: name of the stage to start with.
    """

    def __init__(self, stages: list[Stage] | None = None, from_stage: str | None = None) -> None:
        self.open_ended = not stages  # limited only by the trainer
        self.stages = stages or [Stage("main")]
        self.index = self._index_of(from_stage) if from_stage else 0
        self.first_epoch = 0
        self.ended: int | None = None  # number of epochs of the run after which early stopping ended the stage
        self.best: float | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.bad_validations = 0
        self.measured: float | None = None  # last value of the monitor before a resume
        self.resumed_at_epoch_end = False
        self.entered = False
        self.documents: np.ndarray | None = None  # training documents of the stage; None means all
        self.frozen: frozenset[str] = frozenset()  # names of parameters that the model itself freezes
        self.eval_modules: list[nn.Module] = []  # frozen modules that this callback has put into evaluation mode
        self.seed = 0
        self.gradient_clip_val: float | None = None

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    @property
    def stage_name(self) -> str:
        return self.stage.name

    @property
    def epoch(self) -> int:
        """Epoch of the stage, from 0."""
        return epochs_done(self.trainer) - self.first_epoch

    def _index_of(self, name: str) -> int:
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise UserError(f"no stage {name!r}: the experiment has {', '.join(names)}")
        return names.index(name)

    # State in checkpoints

    def state_dict(self) -> dict[str, Any]:
        value = self.trainer.callback_metrics.get(self.stage.monitor)
        state = {"name": self.stage.name, "measured": None if value is None else float(value)}
        return state | {name: getattr(self, name) for name in STORED}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.index = self._index_of(state_dict["name"])
        for name, kinds in (STORED | {"measured": (float, NoneType)}).items():
            if not isinstance(value := state_dict[name], kinds):
                raise UserError(f"the state of the stages is damaged: {name} is of type {type(value).__name__}")
            setattr(self, name, value)
        self.entered = True
        self._apply()  # DDP and the optimizers are created after this

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.resumed_at_epoch_end = resume_at_next_epoch(checkpoint)

    # Hooks, in the order in which Lightning calls them

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_strategy(trainer)
        if len(self.stages) > 1 and callbacks_of(trainer, EarlyStopping):
            raise UserError("EarlyStopping would end all stages at once: set `patience` of a stage instead")
        assert isinstance(pl_module, ZooModule)
        self.trainer, self.module, self.head = trainer, pl_module, pl_module.head
        pl_module.schedule = self
        if (data := TextDataModule.of(trainer)) is not None:
            data.schedule = self
        self.seed = global_seed()
        self.gradient_clip_val = trainer.gradient_clip_val
        check_low(0, **{"trainer.gradient_clip_val": trainer.gradient_clip_val})
        self.frozen = frozenset(name for name, p in pl_module.named_parameters() if not p.requires_grad)
        check_stages([] if self.open_ended else self.stages, pl_module, self.head, self.frozen)
        if is_fast_dev_run(trainer):  # would end after the first stage
            self.stages = [replace(stage, epochs=min(stage.epochs, 1)) for stage in self.stages]
            trainer.fit_loop.epoch_loop.max_steps = -1
        self._apply()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_pending(self.head, self.stages[self.index + self.entered :])
        if not self.open_ended:
            table = self._table()
            if trainer.is_global_zero:
                note(f"stages: {', '.join(stage.name for stage in self.stages)}", rendered=table)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        set_warmup_steps(trainer, (trainer.max_epochs or 0) if self.open_ended else self.stage.epochs)
        # Lightning steps ReduceLROnPlateau after it has written the checkpoint of an epoch's end.
        for config in trainer.lr_scheduler_configs:
            scheduler = config.scheduler
            if isinstance(scheduler, ReduceLROnPlateau) and self.measured is not None and self.resumed_at_epoch_end:
                scheduler.step(self.measured)
        self._set_eval_modules()  # a resume within an epoch skips `on_train_epoch_start`

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_if_requested(trainer)
        self._enter_due_stages()
        self._set_eval_modules()
        self._call(self.stage.each_epoch, self.index, self.epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # from the batch, not the step, which accumulated batches share
        torch.manual_seed(derive_seed(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = self.stage
        if trainer.sanity_checking or not (stage.patience or stage.restore_best):
            return
        if stage.monitor not in trainer.callback_metrics:
            raise UserError(f"stage {stage.name!r} monitors {stage.monitor!r}, which is not logged")
        value = float(trainer.callback_metrics[stage.monitor])
        if stage.is_better(value, self.best):
            self.best, self.bad_validations = value, 0
            if stage.restore_best:
                self.best_weights = {name: t.detach().cpu().clone() for name, t in trained_state(pl_module)}
        else:
            self.bad_validations += 1
            if 0 < stage.patience <= self.bad_validations:
                self._end_after_this_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._run_remaining_stages():
            save_best_if_none(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning skips training, and `on_train_end`, if there is no epoch left; it has moved the model to the CPU.
        if self._is_over() and not self.finished:
            trainer.strategy.model_to_device()
            with signals_request_stop(trainer):
                self._run_remaining_stages()

    @property
    def finished(self) -> bool:
        """Whether all stages are done."""
        return self.open_ended or (self._is_over() and self.entered and self.index + 1 == len(self.stages))

    @property
    def transformed(self) -> bool:
        """Whether the weights come from a checkpoint or a transition, and so need no training step."""
        entered = self.stages[: self.index + self.entered]
        return self.module.start is not None or any(stage.on_enter for stage in entered)

    # Helpers

    def _table(self) -> Table:
        """Summarize the stages; selects documents and makes optimizers, so that mistakes show at the start."""
        table = Table("stage", "epochs", "documents", "trained parameters", "learning rates", "on entering")
        has_each_epoch = any(stage.each_epoch for stage in self.stages)
        if has_each_epoch:
            table.add_column("each epoch")
        for index, stage in enumerate(self.stages):
            parameters, documents, rates = {}, None, []
            if stage.epochs:
                parameters, documents = stage.parameters(self.module, self.frozen), self._documents(stage)
                optimizer = self.module.optimizer_of(stage, parameters)["optimizer"]
                rates = list(dict.fromkeys(group["lr"] for group in optimizer.param_groups))
            table.add_row(
                f"{stage.name} (here)" if index == self.index > 0 else stage.name,
                str(stage.epochs or "-"),
                "-" if not stage.epochs else count_documents(self.trainer, stage.name, documents),
                f"{sum(p.numel() for p in parameters.values()):,}" if parameters else "-",
                ", ".join(f"{rate:g}" for rate in rates) or "-",
                ", ".join(stage.on_enter) or "-",
                *([", ".join(stage.each_epoch) or "-"] if has_each_epoch else []),
            )
        return table

    def _enter_due_stages(self) -> None:
        """Enter the stage of the next epoch, and those without epochs before it."""
        if not self.entered:
            self._enter(self.index)
        while self._is_over() and self.index + 1 < len(self.stages):
            self._leave()
            self._enter(self.index + 1)

    def _run_remaining_stages(self) -> bool:
        """Enter the last stages if they have no epochs; return whether there were any."""
        before = (self.index, self.entered)
        if self._is_over():
            stop_if_requested(self.trainer)
            self._enter_due_stages()
        if before == (self.index, self.entered):
            return False
        validate_and_save(self.trainer)
        return True

    def _is_over(self) -> bool:
        return not self.open_ended and (self.ended is not None or self.epoch >= self.stage.epochs)

    def _end_after_this_epoch(self) -> None:
        self.ended = self.trainer.current_epoch + 1
        if not self._epochs_of_later_stages():
            self.trainer.should_stop = True

    def _epochs_of_later_stages(self) -> int:
        return sum(stage.epochs for stage in self.stages[self.index + 1 :])

    def _last_epoch(self) -> int:
        end = self.first_epoch + self.stage.epochs if self.ended is None else self.ended
        return end + self._epochs_of_later_stages()

    def _apply(self) -> None:
        """Freeze parameters, select documents and set limits for the current stage."""
        trainer, module = self.trainer, self.module
        # A stage without epochs keeps all parameters: Lightning needs an optimizer that has some.
        trained = (self.stage if self.stage.epochs else Stage("all")).parameters(module, self.frozen)
        for name, parameter in module.named_parameters():
            parameter.requires_grad = name in trained
            parameter.grad = None
        clip = self.stage.gradient_clip_val
        trainer.gradient_clip_val = self.gradient_clip_val if clip is None else clip
        if not self.open_ended:
            trainer.fit_loop.max_epochs = self._last_epoch()
        self.documents = self._documents(self.stage)

    def _documents(self, stage: Stage) -> np.ndarray | None:
        """Training documents of a stage; None means all."""
        if not stage.documents:
            return None
        if (data := TextDataModule.of(self.trainer)) is None:
            raise UserError(f"stage {stage.name!r} selects documents: it needs a `TextDataModule`")
        chosen: np.ndarray = attrgetter(stage.documents)(self.head)(data.train_targets(), self.seed).numpy()
        if not len(chosen):
            raise UserError(f"stage {stage.name!r}: {stage.documents} selects no training documents")
        return chosen

    def _leave(self) -> None:
        """Save the weights that the next stage starts from as `<stage>.ckpt`."""
        self.module.apply_average()
        if self.best_weights:  # a complete state dict: a head may take a partial one for that of another model
            self.module.load_state_dict(self.module.state_dict() | self.best_weights)
        if self.trainer.checkpoint_callbacks and not is_fast_dev_run(self.trainer):
            path = os.path.join(self.trainer.default_root_dir, "checkpoints", f"{self.stage.name}.ckpt")
            self.trainer.save_checkpoint(path, weights_only=True)

    def _enter(self, index: int) -> None:
        trainer = self.trainer
        changed = self.entered or index > 0
        self.index, self.first_epoch, self.entered = index, epochs_done(trainer), True
        self.ended, self.best, self.best_weights, self.bad_validations = None, None, {}, 0
        for logger in trainer.loggers:
            logger.log_metrics({"stage": index}, step=logging_step(trainer))
        self._call(self.stage.on_enter, index)
        self._apply()
        if self.stage.epochs and changed:
            reset_best_checkpoint(trainer)
            reload_train_dataloader(trainer)
            rebuild_training_state(trainer, self.stage.epochs)

    def _call(self, methods: list[str], index: int, *epoch: int) -> None:
        """Call methods of the head; the seed depends on the stage and, if given, its epoch."""
        if methods:
            torch.manual_seed(derive_seed(self.seed, index, *epoch))
            context = TrainerContext(self.trainer, self.module, self.stage.name, self.seed, *epoch)
            for method in methods:
                attrgetter(method)(self.head)(context)
                broadcast_state(self.trainer, self.head)  # before the next method reads it
                self.module.check_finite()

    def _set_eval_modules(self) -> None:
        """Put frozen modules into evaluation mode, without dropout."""
        for module in self.eval_modules:
            module.training = True
        self.eval_modules = [] if self.stage.dropout_in_frozen else frozen_modules(self.module)
        for module in self.eval_modules:
            module.training = False
