"""Learning rate schedule over the optimizer steps of a stage."""

from __future__ import annotations

import math

from pytorch_lightning import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zoo.core.errors import UserError, check_low, check_range


class WarmupDecay(LRScheduler):
    """Linear warm-up, then linear decay until the end of the stage.

    Steps after each optimizer step, regardless of `lr_interval`. Parameter groups keep the ratios of their rates.

    Args:
        optimizer: optimizer whose learning rates are scheduled.
        warmup: fraction of the optimizer steps of the stage that are warm-up.
        start: factor of the learning rates after the warm-up.
        end: factor at the end of the stage; use it as `start` of the next stage for a continuous schedule.
    """

    every_step = True  # a scheduler class with this attribute steps after each optimizer step

    def __init__(self, optimizer: Optimizer, warmup: float = 0.06, start: float = 1.0, end: float = 0.0) -> None:
        check_range(0, 1, warmup=warmup)  # a share of the steps
        check_low(0, start=start, end=end)
        self.warmup, self.start, self.end = warmup, start, end
        self.steps: int | None = None  # in the stage; known once its documents are selected
        super().__init__(optimizer)

    def set_steps(self, steps: int) -> None:
        """Set the number of optimizer steps in the stage, and update the learning rates."""
        self.steps = steps
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def factor(self, step: int) -> float:
        """Return the factor of the learning rates in a step, from 0; the maximum while `steps` is unknown."""
        if self.steps is None:
            return max(self.start, self.end)
        if step >= self.steps:
            return self.end
        warmup_steps = round(self.warmup * self.steps)
        if step < warmup_steps:  # starts above 0, or the first step would be wasted
            return self.start * (step + 1) / warmup_steps
        return self.start + (self.end - self.start) * (step - warmup_steps) / (self.steps - warmup_steps)

    def get_lr(self) -> list[float | Tensor]:
        if self.steps is None and self.last_epoch > 0:
            raise RuntimeError("WarmupDecay does not know the number of steps: `StageSchedule` must set it")
        factor = self.factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]


def set_warmup_steps(trainer: Trainer, epochs: int) -> None:
    """Set the number of steps of each `WarmupDecay`, once the dataloader exists; -1 epochs if unlimited."""
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, WarmupDecay):
            config.scheduler.set_steps(optimizer_steps(trainer, epochs))


def optimizer_steps(trainer: Trainer, epochs: int) -> int:
    limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if epochs >= 0 and trainer.num_training_batches < math.inf:
        # an epoch ends with an optimizer step, even if fewer batches than usual are accumulated
        limits.append(epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))
    if not limits:
        raise UserError(
            "WarmupDecay needs the number of training steps: set `trainer.max_epochs` or `trainer.max_steps`"
        )
    return min(limits)
