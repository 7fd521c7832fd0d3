"""Settings of a training stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, get_args, get_type_hints

from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from zoo.core.errors import UserError, check_low, check_numbers
from zoo.core.metrics import MONITOR, best_mode


@dataclass
class Stage:
    """A training stage: which parameters are trained, on which documents, how and for how long.

    Args:
        name: used in log keys, the progress bar and the head's loss.
        epochs: 0 for a stage that only calls `on_enter`.
        trainable: globs over parameter names, such as `backbone.*`; parameters that the model freezes stay frozen.
        on_enter: methods of the head that are called in this order when the stage starts.
        each_epoch: methods of the head that are called in this order at the start of every epoch.
        documents: method of the head that selects the training documents; all of them by default.
        optimizer: the model's by default.
        lr_scheduler: the model's by default, if the optimizer is the model's too.
        lr_interval: when the scheduler steps.
        lr: overrides the learning rate of the optimizer.
        groups: optimizer settings by glob, such as `{"head.*": {lr: 0.01}, "*.bias": {weight_decay: 0}}`; if several
            match, the last one wins.
        decay_biases: False disables weight decay of biases and norms (one dimension or none); `groups` take precedence.
        gradient_clip_val: the trainer's by default.
        monitor: metric for `patience` and `restore_best`.
        mode: whether `monitor` is maximized or minimized; by default metrics are maximized and losses minimized.
        patience: early stopping after this many validations without improvement; 0 disables it.
        restore_best: the next stage starts from the weights of the best epoch instead of the last one.
        average_from: epoch of the stage, from 0, in which weight averaging starts; None disables it.
        average_every: optimizer steps between two updates of the average.
        dropout_in_frozen: keep frozen modules in training mode; by default they are in evaluation mode.
    """

    name: str
    epochs: int = 0
    trainable: list[str] = field(default_factory=lambda: ["*"])
    on_enter: list[str] = field(default_factory=list)
    each_epoch: list[str] = field(default_factory=list)
    documents: str | None = None
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None
    lr_interval: Literal["epoch", "step"] = "epoch"
    lr: float | None = None
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    decay_biases: bool = True
    gradient_clip_val: float | None = None
    monitor: str = MONITOR
    mode: Literal["max", "min"] | None = None
    patience: int = 0
    restore_best: bool = False
    average_from: int | None = None
    average_every: int = 100
    dropout_in_frozen: bool = False

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Stage).items():  # jsonargparse checks all other kinds
            if getattr(self, name) is None and type(None) not in get_args(kind):
                example = getattr(kind, "__name__", kind)
                raise UserError(f"`stages.{self.name}.{name}=null` is not valid: expected {example}")

        def named(*names: str) -> dict[str, Any]:
            return {f"stages.{self.name}.{name}": getattr(self, name) for name in names}

        check_low(0, **named("epochs", "lr", "gradient_clip_val", "patience", "average_from"))
        check_low(1, **named("average_every"))
        for glob, settings in self.groups.items():
            check_numbers(settings, f"stages.{self.name}.groups.{glob}")

    def parameters(self, module: nn.Module, frozen: frozenset[str] = frozenset()) -> dict[str, nn.Parameter]:
        """Return the parameters that the stage trains, by name."""
        named = ((name, p) for name, p in module.named_parameters() if name not in frozen)
        return {name: p for name, p in named if any(fnmatchcase(name, glob) for glob in self.trainable)}

    def parameter_groups(self, parameters: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer, one for each combination of settings."""
        common = {} if self.lr is None else {"lr": self.lr}
        groups: dict[str, dict[str, Any]] = {}
        for name, parameter in parameters.items():
            settings = dict(common)
            if not self.decay_biases and parameter.ndim <= 1:
                settings["weight_decay"] = 0.0
            for glob, values in self.groups.items():
                if fnmatchcase(name, glob):
                    settings |= values
            groups.setdefault(repr(settings), settings | {"params": []})["params"].append(parameter)
        return list(groups.values())

    def is_better(self, value: float, best: float | None) -> bool:
        mode = self.mode or best_mode(self.monitor)
        return best is None or (value > best if mode == "max" else value < best)


class Schedule(Protocol):
    """The attributes of `callbacks.StageSchedule` that a module reads."""

    open_ended: bool  # a single stage that is limited only by the trainer
    first_epoch: int  # epoch of the run in which the current stage started

    @property
    def stage(self) -> Stage: ...


MAIN = Stage("main")  # the stage of a module without a schedule
