"""A stage of training, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from operator import attrgetter
from typing import Any, Literal

from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from datamodules.errors import UserError
from heads import Head

RESERVED = {"best", "last"}  # a stage leaves a checkpoint of its own name


@dataclass
class Stage:
    """What is trained, on which documents, with what and for how long, and what happens before.

    Args:
        name: what log keys, the progress bar and the head's loss call it.
        epochs: 0 makes a stage that only transforms.
        trainable: globs over parameter names, such as `backbone.*`; what the model itself freezes stays frozen.
        on_enter: methods of the head, called one after the other on entering.
        each_epoch: methods of the head, called one after the other when an epoch starts, the first one too.
        documents: method of the head that chooses the training documents; all of them by default.
        optimizer: the model's by default.
        lr_scheduler: the model's by default, where the optimizer is too.
        lr_interval: when the scheduler steps.
        lr: learning rate in place of the optimizer's own.
        groups: optimizer settings by glob, such as `{"head.*": {lr: 0.01}, "*.bias": {weight_decay: 0}}`; where
            several match, later ones win.
        decay_biases: False takes weight decay off parameters of at most one dimension, biases and norms; `groups` win.
        gradient_clip_val: the trainer's by default.
        monitor: validation metric that `patience` and `restore_best` go by.
        mode: whether more or less of it is better.
        patience: end the stage after so many validations without a new best; 0 never does.
        restore_best: the next stage starts from the best epoch's weights instead of the last one's.
        average_from: epoch of the stage, from 0, with whose start an average of the weights begins; None never does.
        average_every: optimizer steps from one weight in the average to the next.
        dropout_in_frozen: parts that the stage does not train work as in training; by default as in evaluation.
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
    monitor: str = "val/nDCG@5"
    mode: Literal["max", "min"] = "max"
    patience: int = 0
    restore_best: bool = False
    average_from: int | None = None
    average_every: int = 100
    dropout_in_frozen: bool = False

    def parameters(self, module: nn.Module, frozen: frozenset[str] = frozenset()) -> dict[str, nn.Parameter]:
        """What the stage trains, by name."""
        named = ((name, p) for name, p in module.named_parameters() if name not in frozen)
        return {name: p for name, p in named if any(fnmatchcase(name, glob) for glob in self.trainable)}

    def parameter_groups(self, parameters: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Parameters that share their settings, for an optimizer."""
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
        return best is None or (value > best if self.mode == "max" else value < best)

    def check(self, module: nn.Module, head: Head, frozen: frozenset[str]) -> None:
        """Find mistakes now, not after hours of earlier stages."""
        where = f"stage {self.name!r}"
        if not re.fullmatch(r"[\w-]+", self.name) or self.name in RESERVED:
            raise UserError(f"{where}: a name has letters, digits, - and _, and is none of {sorted(RESERVED)}")
        if self.epochs < 0 or self.patience < 0:
            raise UserError(f"{where}: epochs and patience cannot be negative")
        begin = self.average_from
        if begin is not None and (begin < 0 or begin >= self.epochs > 0):
            raise UserError(
                f"{where}: average_from={begin} would never begin: its epochs are 0 to {self.epochs - 1}; "
                f"--stages.{self.name}.average_from=null for no average"
            )
        if self.average_every < 1:
            raise UserError(f"{where}: average_every={self.average_every} must be 1 or more optimizer steps")
        for moment, methods in (("on_enter", self.on_enter), ("each_epoch", self.each_epoch)):
            for method in methods:
                check_method(f"{where}, {moment}", head, method, "a TransitionContext")
        if self.documents:
            check_method(f"{where}, documents", head, self.documents, "targets", "a seed")
        known = [name for name, _ in module.named_parameters()]
        for glob in self.trainable if known else ():  # a linear engine has no parameters
            check_glob(f"{where}, trainable", glob, known)
        names = list(self.parameters(module, frozen))
        if self.epochs and not names:
            raise UserError(f"{where}: nothing to train; `trainable` matches no parameter that is not frozen")
        for glob in self.groups if self.epochs else ():
            check_glob(f"{where}, groups", glob, names)


def check_method(where: str, head: Head, name: str, *arguments: str) -> None:
    try:
        method = attrgetter(name)(head)
    except AttributeError:
        method = None
    if not callable(method):
        raise UserError(f"{where}: {type(head).__name__} has no method {name!r}")
    try:
        signature(method).bind(*arguments)
    except TypeError:
        raise UserError(f"{where}: {name!r} does not take {' and '.join(arguments)}") from None


def check_glob(where: str, glob: str, names: list[str]) -> None:
    if not any(fnmatchcase(name, glob) for name in names):
        near = get_close_matches(glob, names, n=6, cutoff=0) or names
        raise UserError(f"{where}: nothing matches {glob!r}; there are {', '.join(near)}{', ...' * (len(names) > 6)}")


def check_stages(stages: list[Stage], module: nn.Module, head: Head, frozen: frozenset[str]) -> None:
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise UserError(f"stage names must differ: {', '.join(names)}")
    for stage in stages:
        stage.check(module, head, frozen)


def check_pending(head: Head, stages: list[Stage]) -> None:
    """A head that needs a transition must find it in one of the stages that are to come."""
    ahead = [method for stage in stages for method in stage.on_enter]
    if missing := [method for method in head.pending if method not in ahead]:
        raise UserError(
            f"{type(head).__name__} needs a stage with `on_enter: [{missing[0]}]`, and none of those to come has it: "
            "see its experiments in experiments/, or begin at an earlier stage"
        )
    head.check_plan(ahead)
