"""Averages of the weights of a stage."""

from __future__ import annotations

import math
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from callbacks.schedule import StageSchedule
from callbacks.transition import averaged, use_average


class StageAveraging(Callback):
    """Averages what a stage trains over its later steps, as its `average_from` and `average_every` say.

    Training goes on with its own weights, as if there were no average. Validation, every checkpoint and the next stage
    get the average, which the module keeps in `averaged`; for a resume a checkpoint has the weights of training too.

    Args:
        schedule: knows the stage and its epoch; must come before this callback.
    """

    def __init__(self, schedule: StageSchedule) -> None:
        self.schedule = schedule
        self.count = 0  # of weights in the average
        self.first_step = 0
        self.own: dict[nn.Parameter, Tensor] = {}  # weights of training, while a validation has the average
        self.restored: dict[str, Tensor] = {}  # the same, from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        module = self.schedule.module
        own = self.own or {parameter: parameter for parameter in averaged(module)}
        if not own:
            return {}
        named = {name: own[p].detach() for name, p in module.named_parameters() if p in own}
        return {"count": self.count, "first_step": self.first_step, "own": named}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.schedule.trainer.state.fn == "fit":  # the test after a fit loads the best checkpoint
            self.count, self.first_step = state_dict["count"], state_dict["first_step"]
            self.restored = state_dict["own"]

    @torch.no_grad()
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        average = averaged(pl_module)
        for name, parameter in pl_module.named_parameters():
            if name in self.restored:
                average[parameter] = parameter.detach().clone()
                parameter.copy_(self.restored[name])
        self.restored = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        begin, average = self.schedule.stage.average_from, averaged(pl_module)
        if not average and begin is not None and self.schedule.epoch >= begin:
            average.update({p: p.detach().clone() for p in pl_module.parameters() if p.requires_grad})
            self.count, self.first_step = 1, trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        average = averaged(pl_module)
        if not average or trainer.fit_loop._should_accumulate():
            return
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        # At least once in an epoch: validations in between would all measure the same weights.
        if (trainer.global_step - self.first_step) % min(self.schedule.stage.average_every, steps) == 0:
            self.count += 1
            for parameter, mean in average.items():
                mean.lerp_(parameter, 1 / self.count)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        average = averaged(pl_module)
        self.own = exchanged(average)
        average.clear()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        averaged(pl_module).update(exchanged(self.own))
        self.own = {}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        use_average(pl_module)


@torch.no_grad()
def exchanged(weights: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Parameters get these weights; returns the ones that they had, which are in the same memory."""
    for parameter, other in weights.items():
        before = parameter.clone()
        parameter.copy_(other)
        other.copy_(before)
    return dict(weights)
