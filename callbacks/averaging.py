"""Weight averaging within a stage."""

from __future__ import annotations

import math
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from callbacks.schedule import StageSchedule
from zoo.core.errors import UserError
from zoo.core.lightning_internals import is_accumulating


class StageAveraging(Callback):
    """Averages the trained weights of a stage, as set by its `average_from` and `average_every`.

    Training continues with its own weights. Validation, checkpoints and the next stage use the average, which is in
    `ZooModule.averaged`; a checkpoint also stores the weights of training, to resume from.

    Lightning's `WeightAveraging` does not fit, because it copies the model once at `setup`, cannot restart with a
    stage, validates the initial weights until its first update, also averages frozen parameters, and swaps back before
    `on_validation_end`, where `restore_best` reads the validated weights.

    Args:
        schedule: provides the stage and its epoch; must come before this callback.
    """

    def __init__(self, schedule: StageSchedule) -> None:
        self.schedule = schedule
        self.count = 0  # number of weights in the average
        self.first_step = 0
        self.own: dict[nn.Parameter, Tensor] = {}  # weights of training, while the module has the average
        self.restored: dict[str, Tensor] = {}  # weights of training from a checkpoint

    @property
    def average(self) -> dict[nn.Parameter, Tensor]:
        return self.schedule.module.averaged

    def state_dict(self) -> dict[str, Any]:
        own = self.own or {parameter: parameter for parameter in self.average}
        if not own:
            return {}
        named = {name: own[p].detach() for name, p in self.schedule.module.named_parameters() if p in own}
        return {"count": self.count, "first_step": self.first_step, "own": named}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.schedule.trainer.state.fn == "fit":  # not for the test after a fit, which loads the best checkpoint
            self.count, self.first_step = state_dict["count"], state_dict["first_step"]
            self.restored = state_dict["own"]
            parameters = dict(self.schedule.module.named_parameters())
            if wrong := [name for name, own in self.restored.items() if own.shape != parameters[name].shape]:
                raise UserError(f"the weights before averaging have another shape in the checkpoint: {wrong[0]}")

    @torch.no_grad()
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, parameter in pl_module.named_parameters():
            if name in self.restored:
                self.average[parameter] = parameter.detach().clone()
                parameter.copy_(self.restored[name])
        self.restored = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        first_epoch = self.schedule.stage.average_from
        if not self.average and first_epoch is not None and self.schedule.epoch >= first_epoch:
            self.average.update({p: p.detach().clone() for p in pl_module.parameters() if p.requires_grad})
            self.count, self.first_step = 1, trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.average or is_accumulating(trainer):
            return
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        # At least once per epoch, or consecutive validations would measure the same weights.
        if (trainer.global_step - self.first_step) % min(self.schedule.stage.average_every, steps) == 0:
            self.count += 1
            for parameter, mean in self.average.items():
                mean.lerp_(parameter, 1 / self.count)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.own = dict(self.average)
        swap_weights(self.own)
        self.average.clear()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        swap_weights(self.own)
        self.average.update(self.own)
        self.own = {}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.schedule.module.apply_average()


@torch.no_grad()
def swap_weights(weights: dict[nn.Parameter, Tensor]) -> None:
    """Swap the values of each parameter and its tensor, in place."""
    for parameter, other in weights.items():
        before = parameter.clone()
        parameter.copy_(other)
        other.copy_(before)
