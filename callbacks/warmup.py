"""A learning rate that rises at the start of a stage, and falls until its end."""

from __future__ import annotations

import math

from pytorch_lightning import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from datamodules.errors import UserError


class WarmupDecay(LRScheduler):
    """Rises in a straight line from 0, then goes in another one to what it shall be at the end of the stage.

    It steps with the optimizer, whatever `lr_interval` says. Groups with rates of their own keep their ratios.

    Args:
        optimizer: whose rates are changed.
        warmup: share of the stage's optimizer steps in which the rate rises.
        start: factor of the optimizer's rates after that.
        end: factor at the end of the stage; another stage that starts with it goes on without a jump.
    """

    def __init__(self, optimizer: Optimizer, warmup: float = 0.06, start: float = 1.0, end: float = 0.0) -> None:
        if not 0 <= warmup <= 1:
            raise ValueError(f"warmup={warmup} is a share of the steps, from 0 to 1")
        if not (0 <= start < math.inf and 0 <= end < math.inf):
            raise ValueError(f"start={start} and end={end} are factors of the learning rate, 0 or more")
        self.warmup, self.start, self.end = warmup, start, end
        self.steps: int | None = None  # of the stage; not known before its documents are
        super().__init__(optimizer)

    def tell(self, steps: int) -> None:
        """How many optimizer steps the stage has; the rates are at once what they should be."""
        self.steps = steps
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def factor(self, step: int) -> float:
        """What the rates of a step, from 0, are multiplied with; the highest factor while the steps are unknown."""
        if self.steps is None:
            return max(self.start, self.end)
        if step >= self.steps:
            return self.end
        rising = round(self.warmup * self.steps)
        if step < rising:  # a first step with a rate of 0 would be wasted
            return self.start * (step + 1) / rising
        return self.start + (self.end - self.start) * (step - rising) / (self.steps - rising)

    def get_lr(self) -> list[float | Tensor]:
        if self.steps is None and self.last_epoch > 0:
            raise RuntimeError("WarmupDecay does not know how many steps there are: a stage's schedule must tell it")
        factor = self.factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]


def tell_steps(trainer: Trainer, epochs: int) -> None:
    """Let a `WarmupDecay` know the steps of a stage whose loader is made; without an end of its own -1 epochs."""
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, WarmupDecay):
            config.scheduler.tell(optimizer_steps(trainer, epochs))


def optimizer_steps(trainer: Trainer, epochs: int) -> int:
    limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if epochs >= 0 and trainer.num_training_batches < math.inf:
        # the last batches of an epoch make a step, also if they are fewer than are to be accumulated
        limits.append(epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))
    if not limits:
        raise UserError("WarmupDecay needs to know where training ends: give --trainer.max_epochs or max_steps")
    return min(limits)
