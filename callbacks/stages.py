"""Validation of stages at the start of a run, before hours are spent on earlier stages."""

from __future__ import annotations

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from operator import attrgetter
from typing import Any

from torch import nn

from heads import Head
from zoo.core.errors import UserError
from zoo.training.stage import Stage

RESERVED = {"best", "last"}  # names of other checkpoints


def check_stage(stage: Stage, module: nn.Module, head: Head, frozen: frozenset[str]) -> None:
    where = f"stage {stage.name!r}"
    if not re.fullmatch(r"[\w-]+", stage.name) or stage.name in RESERVED:
        raise UserError(f"{where}: a name consists of letters, digits, - and _, and is not one of {sorted(RESERVED)}")
    begin = stage.average_from
    if begin is not None and begin >= stage.epochs > 0:
        raise UserError(
            f"{where}: average_from={begin} is never reached, its epochs are 0 to {stage.epochs - 1}; "
            f"`stages.{stage.name}.average_from=null` disables averaging"
        )
    for moment, methods in (("on_enter", stage.on_enter), ("each_epoch", stage.each_epoch)):
        for method in methods:
            check_method(f"{where}, {moment}", head, method, "a TransitionContext")
    if stage.documents:
        check_method(f"{where}, documents", head, stage.documents, "targets", "a seed")
    known = [name for name, _ in module.named_parameters()]
    for glob in stage.trainable if known else ():  # a linear engine has no parameters
        check_glob(f"{where}, trainable", glob, known)
    names = list(stage.parameters(module, frozen))
    if stage.epochs and not names:
        raise UserError(f"{where}: nothing to train; `trainable` matches no parameter, or only frozen ones")
    for glob in stage.groups if stage.epochs else ():
        check_glob(f"{where}, groups", glob, names)


def method_of(head: Head, path: str) -> Any:
    """A public method of a head, or of a head in it, that not every module has; None if there is none."""
    *parts, name = path.split(".")
    try:
        owner = attrgetter(".".join(parts))(head) if parts else head
    except AttributeError:
        return None
    kinds = [kind for kind in type(owner).__mro__ if kind not in nn.Module.__mro__]
    is_own = not hasattr(nn.Module, name) or any(name in vars(kind) for kind in kinds)
    is_public = isinstance(owner, nn.Module) and not name.startswith("_")
    return getattr(owner, name, None) if is_own and is_public else None


def check_method(where: str, head: Head, name: str, *arguments: str) -> None:
    method = method_of(head, name)
    if not callable(method):
        raise UserError(f"{where}: {type(head).__name__} has no method {name!r}")
    try:
        signature(method).bind(*arguments)
    except TypeError:
        raise UserError(f"{where}: {name!r} does not accept {' and '.join(arguments)}") from None


def check_glob(where: str, glob: str, names: list[str]) -> None:
    if not any(fnmatchcase(name, glob) for name in names):
        near = get_close_matches(glob, names, n=6, cutoff=0) or names
        raise UserError(f"{where}: nothing matches {glob!r}; there are {', '.join(near)}{', ...' * (len(names) > 6)}")


def check_stages(stages: list[Stage], module: nn.Module, head: Head, frozen: frozenset[str]) -> None:
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise UserError(f"stage names must differ: {', '.join(names)}")
    for stage in stages:
        check_stage(stage, module, head, frozen)


def check_pending(head: Head, stages: list[Stage]) -> None:
    """Check that the remaining stages call all transitions that the head needs."""
    planned = [method for stage in stages for method in stage.on_enter]
    if missing := [method for method in head.pending if method not in planned]:
        raise UserError(
            f"{type(head).__name__} needs a stage with `on_enter: [{missing[0]}]`, and no remaining stage has it: "
            "see its experiments in experiments/, or start at an earlier stage"
        )
    head.check_plan(planned)
