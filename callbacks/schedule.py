"""Several stages of training inside one `Trainer.fit`."""

from __future__ import annotations

import os
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from callbacks.last import heeding_sigterm, stop_if_asked
from callbacks.stages import Stage, check_pending, check_stages
from callbacks.transition import (
    TrainerContext,
    check_strategy,
    count_documents,
    forget_best,
    from_epoch_start,
    measure_and_save,
    parts_at_rest,
    rebuild_training_state,
    reload_training_data,
    same_on_all_processes,
    save_best_if_none,
    step_seed,
    trained_state,
    use_average,
)
from callbacks.warmup import tell_steps
from datamodules import TextDataModule
from datamodules.errors import UserError
from heads import Head


class StageSchedule(Callback):
    """Leads the module through its stages, on any number of processes, and goes on exactly after a resume.

    A stage is entered when an epoch starts: the checkpoint at the end of the epoch before holds the weights from
    before the transition, and a resume from it runs the transition again from the same state.

    Args:
        stages: in their order; none makes one stage, `main`, of the trainer's `max_epochs`.
        from_stage: begin at this one.
    """

    def __init__(self, stages: list[Stage] | None = None, from_stage: str | None = None) -> None:
        self.open_ended = not stages  # the trainer's own limits hold
        self.stages = stages or [Stage("main")]
        self.index = self._index_of(from_stage) if from_stage else 0
        self.first_epoch = 0
        self.ended: int | None = None  # epochs of the whole run after which patience was at its end
        self.best: float | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.bad_validations = 0
        self.measured: float | None = None  # by the validation before a resume
        self.made_up = True  # whether nothing is left to be done of the epoch before a resume
        self.entered = False
        self.frozen: frozenset[str] = frozenset()
        self.resting: list[nn.Module] = []  # parts in evaluation mode, for the stage does not train them
        self.seed = 0
        self.gradient_clip_val: float | None = None

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    @property
    def epoch(self) -> int:
        """Within the stage, from 0."""
        return self._done() - self.first_epoch

    def _index_of(self, name: str) -> int:
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise UserError(f"there is no stage {name!r}: the experiment has {', '.join(names)}")
        return names.index(name)

    # What a checkpoint keeps of it

    def state_dict(self) -> dict[str, Any]:
        kept = ("first_epoch", "ended", "best", "best_weights", "bad_validations")
        value = self.trainer.callback_metrics.get(self.stage.monitor)
        state = {"name": self.stage.name, "measured": None if value is None else float(value)}
        return state | {name: getattr(self, name) for name in kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.index = self._index_of(state.pop("name"))
        vars(self).update(state, entered=True)
        self._apply(self.trainer, self.module)  # before DDP and the optimizer are made

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.made_up = not from_epoch_start(checkpoint)

    # Hooks, in the order in which they are called

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_strategy(trainer)
        if len(self.stages) > 1 and any(isinstance(c, EarlyStopping) for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise UserError("EarlyStopping would end all stages at once: give a stage its own `patience` instead")
        assert isinstance(pl_module.head, Head)
        self.trainer, self.module, self.head = trainer, pl_module, pl_module.head
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        self.gradient_clip_val = trainer.gradient_clip_val
        self.frozen = frozenset(name for name, p in pl_module.named_parameters() if not p.requires_grad)
        check_stages([] if self.open_ended else self.stages, pl_module, self.head, self.frozen)
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # would end in the first stage
            self.stages = [replace(stage, epochs=min(stage.epochs, 1)) for stage in self.stages]
            trainer.fit_loop.epoch_loop.max_steps = -1
        self._apply(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_pending(self.head, self.stages[self.index + self.entered :])
        if not self.open_ended:
            table = self._table()
            if trainer.is_global_zero:
                Console(stderr=True).print(table)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tell_steps(trainer, (trainer.max_epochs or 0) if self.open_ended else self.stage.epochs)
        # Lightning steps ReduceLROnPlateau only after the checkpoint of an epoch's end is written.
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and self.measured is not None and not self.made_up:
                config.scheduler.step(self.measured)  # type: ignore[arg-type]
        self._rest()  # a resume inside an epoch has no start of one

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_if_asked(trainer)
        self._catch_up()
        self._rest()
        self._call(self.stage.each_epoch, self.index, self.epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # not from the step: batches whose gradients are accumulated share one
        torch.manual_seed(step_seed(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = self.stage
        if trainer.sanity_checking or not (stage.patience or stage.restore_best):
            return
        if stage.monitor not in trainer.callback_metrics:
            raise UserError(f"stage {stage.name!r} monitors {stage.monitor!r}, which is not measured")
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
        if not self._finish():
            save_best_if_none(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # For a resume after the last epoch, and for stages that have none: both skip training. Lightning has taken the
        # model off its device by now.
        if self._is_over() and not self.finished:
            trainer.strategy.model_to_device()
            with heeding_sigterm(trainer):
                self._finish()

    @property
    def finished(self) -> bool:
        """Whether the last stage lies behind."""
        return self.open_ended or (self._is_over() and self.entered and self.index + 1 == len(self.stages))

    # Parts

    def _table(self) -> Table:
        """What will be done, made for the most part as it will be then: mistakes show at the start."""
        table = Table("stage", "epochs", "documents", "trained parameters", "learning rates", "on entering")
        in_epochs = any(stage.each_epoch for stage in self.stages)
        if in_epochs:
            table.add_column("each epoch")
        for index, stage in enumerate(self.stages):
            parameters, documents, rates = {}, None, []
            if stage.epochs:
                parameters, documents = stage.parameters(self.module, self.frozen), self._documents(stage)
                optimizer = self.module.optimizer_of(stage, parameters)["optimizer"]  # type: ignore[operator]
                rates = list(dict.fromkeys(group["lr"] for group in optimizer.param_groups))
            table.add_row(
                f"{stage.name} (here)" if index == self.index > 0 else stage.name,
                str(stage.epochs or "-"),
                "-" if not stage.epochs else count_documents(self.trainer, stage.name, documents),
                f"{sum(p.numel() for p in parameters.values()):,}" if parameters else "-",
                ", ".join(f"{rate:g}" for rate in rates) or "-",
                ", ".join(stage.on_enter) or "-",
                *([", ".join(stage.each_epoch) or "-"] if in_epochs else []),
            )
        return table

    def _catch_up(self) -> None:
        """Enter the stage that is due."""
        if not self.entered:
            self._enter(self.index)
        while self._is_over() and self.index + 1 < len(self.stages):
            self._leave()
            self._enter(self.index + 1)

    def _finish(self) -> bool:
        """Enter what is left, if it has no epochs; returns whether anything was."""
        before = (self.index, self.entered)
        if self._is_over():
            stop_if_asked(self.trainer)
            self._catch_up()
        if before == (self.index, self.entered):
            return False
        measure_and_save(self.trainer)
        return True

    def _is_over(self) -> bool:
        return not self.open_ended and (self.ended is not None or self.epoch >= self.stage.epochs)

    def _done(self) -> int:
        """Epochs that lie behind, over all stages."""
        return int(self.trainer.fit_loop.epoch_progress.current.processed)  # type: ignore[attr-defined]

    def _end_after_this_epoch(self) -> None:
        self.ended = self.trainer.current_epoch + 1
        if not self._epochs_to_come():
            self.trainer.should_stop = True

    def _epochs_to_come(self) -> int:
        return sum(stage.epochs for stage in self.stages[self.index + 1 :])

    def _last_epoch(self) -> int:
        end = self.first_epoch + self.stage.epochs if self.ended is None else self.ended
        return end + self._epochs_to_come()

    def _apply(self, trainer: Trainer, module: LightningModule) -> None:
        """Freeze, choose documents and set limits as the present stage says."""
        module.stage = self.stage  # type: ignore[assignment]
        # without epochs all: Lightning wants an optimizer with parameters at every start
        trained = (self.stage if self.stage.epochs else Stage("all")).parameters(module, self.frozen)
        for name, parameter in module.named_parameters():
            parameter.requires_grad = name in trained
            parameter.grad = None
        clip = self.stage.gradient_clip_val
        trainer.gradient_clip_val = self.gradient_clip_val if clip is None else clip
        if not self.open_ended:
            trainer.fit_loop.max_epochs = self._last_epoch()
        if isinstance(data := trainer.datamodule, TextDataModule):  # type: ignore[attr-defined]
            data.stage, data.chosen = self.stage.name, self._documents(self.stage)

    def _documents(self, stage: Stage) -> np.ndarray | None:
        """Training documents of a stage; None means all."""
        if not stage.documents:
            return None
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, TextDataModule):
            raise UserError(f"stage {stage.name!r} chooses documents: that needs a datamodule of the zoo")
        chosen: np.ndarray = attrgetter(stage.documents)(self.head)(data.train_targets(), self.seed).numpy()
        if not len(chosen):
            raise UserError(f"stage {stage.name!r}: {stage.documents} chooses none of the training documents")
        return chosen

    def _leave(self) -> None:
        """The next stage starts from the weights that `<stage>.ckpt` then holds."""
        use_average(self.module)
        if self.best_weights:  # whole: a part may look to a head like another model's weights
            self.module.load_state_dict(self.module.state_dict() | self.best_weights)
        if self.trainer.checkpoint_callbacks and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            path = os.path.join(self.trainer.default_root_dir, "checkpoints", f"{self.stage.name}.ckpt")
            self.trainer.save_checkpoint(path, weights_only=True)

    def _enter(self, index: int) -> None:
        trainer, module = self.trainer, self.module
        changed = self.entered or index > 0
        self.index, self.first_epoch, self.entered = index, self._done(), True
        self.ended, self.best, self.best_weights, self.bad_validations = None, None, {}, 0
        for logger in trainer.loggers:
            logger.log_metrics({"stage": index}, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        self._call(self.stage.on_enter, index)
        self._apply(trainer, module)
        if self.stage.epochs and changed:
            forget_best(trainer)
            reload_training_data(trainer)
            rebuild_training_state(trainer, self.stage.epochs)

    def _call(self, methods: list[str], *place: int) -> None:
        """Methods of the head; what they draw is a function of the seed, the stage and, where given, the epoch."""
        if methods:
            torch.manual_seed(step_seed(self.seed, *place))
            context = TrainerContext(self.trainer, self.module, self.stage.name, self.seed, *place[1:])
            for method in methods:
                attrgetter(method)(self.head)(context)
                same_on_all_processes(self.trainer, self.head)  # the next one may go by what the first process made

    def _rest(self) -> None:
        """No dropout in what the stage does not train."""
        for part in self.resting:
            part.training = True
        self.resting = [] if self.stage.dropout_in_frozen else parts_at_rest(self.module)
        for part in self.resting:
            part.training = False
