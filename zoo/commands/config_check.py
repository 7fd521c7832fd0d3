"""Checks of a run's configuration that no class makes itself: names of files, classes, and numbers anywhere."""

from __future__ import annotations

import inspect
import math
import os
import pkgutil
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning.accelerators import CUDAAccelerator, MPSAccelerator

from zoo.core.console import note
from zoo.core.cores import available_cores
from zoo.core.errors import MAX_SEED, UserError, check_range, first_line
from zoo.core.settings import flattened, parse_yaml

SHARDED = ("fsdp", "deepspeed", "xla", "single_xla")  # strategies that stages do not support
PRECISIONS = (None, 16, 32, "16", "32", "bf16", "32-true", "16-mixed", "bf16-mixed")  # others change the weights
OVERSUBSCRIBE = "ZOO_OVERSUBSCRIBE"  # allows more processes than cores


def check_config(config: dict[str, Any]) -> None:
    """Refuse a configuration, as plain values, before any of its classes is instantiated."""
    name, runs = str(config.get("name") or ""), str(config.get("runs") or "")
    best = str((config.get("best") or {}).get("filename") or "")
    if name and (PurePath(name).name != name or name == ".." or not name.isprintable()):
        raise UserError(f"--name={name!r} must not contain a path: it is the name of a folder in --runs")
    if not runs or not runs.isprintable():
        raise UserError(f"--runs={runs!r} is not the path of a folder")
    if ".." in PurePath(best).parts or PurePath(best).is_absolute() or not best.isprintable():
        raise UserError(f"--best.filename={best!r} must be the name of a file in the run folder")
    seed = config.get("seed_everything")
    check_range(0, MAX_SEED, seed_everything=None if isinstance(seed, bool) else seed)
    for key, value in leaves(config):
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{key}={value} is not a finite number")
        if key.endswith("class_path") and is_abstract(value):
            option = key.removesuffix("class_path").removesuffix(".")
            raise UserError(f"--{option}={value} is an abstract class: choose one of `zoo list`, or derive your own")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values that are not containers, with their dotted keys as on the command line."""
    if isinstance(value, dict):
        for name, inner in value.items():
            part = "" if name == "init_args" else str(name)
            yield from leaves(inner, ".".join(filter(None, [key, part])))
    elif isinstance(value, list | tuple):
        for inner in value:
            named = inner.get("name") if isinstance(inner, dict) else None  # stages
            yield from leaves(inner, f"{key}.{named}" if named else key)
    else:
        yield key, value


def is_abstract(path: Any) -> bool:
    try:
        return inspect.isabstract(pkgutil.resolve_name(str(path)))
    except (ImportError, AttributeError, ValueError):  # the parser knows better
        return False


def broken_module(error: BaseException) -> str | None:
    """One line about a module, named by a setting, that failed while the parser imported it; None for other errors."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "jsonargparse._util" and "name_module" in frame.f_locals:
            name = frame.f_locals["name_module"]
            return f"module {name} cannot be imported: {type(error).__name__}: {first_line(error)}"
    return None


def compare_settings(before: str, now: str) -> None:
    """Refuse to resume a run with another model; a note lists other settings that have changed."""
    old, new = (flattened({k: parse_yaml(text)[k] for k in ("model", "data", "stages")}) for text in (before, now))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if other := [key for key in changed if key.startswith(("model.backbone", "model.head"))]:
        raise UserError(
            f"the run to resume has another model ({', '.join(other)}): start a new one with another --name"
        )
    if changed:
        note(f"settings that have changed since the run was started: {', '.join(changed)}")


def check_trainer(trainer: Namespace) -> None:
    """Refuse trainer settings that no command supports."""
    if trainer.precision not in PRECISIONS:
        raise UserError(
            f"--trainer.precision={trainer.precision} is not supported: weights are in 32 bits; "
            "use 32-true, or bf16-mixed or 16-mixed on a GPU"
        )
    on_cpu = trainer.accelerator == "cpu" or (
        trainer.accelerator == "auto" and not CUDAAccelerator.is_available() and not MPSAccelerator.is_available()
    )
    processes, cores = int(trainer.devices) if str(trainer.devices).isdigit() else 1, available_cores()
    if on_cpu and processes > cores and os.environ.get(OVERSUBSCRIBE, "0") == "0":
        raise UserError(
            f"--trainer.devices={processes} would start {processes} processes on {cores} CPU cores: "
            f"use at most {cores}, or set {OVERSUBSCRIBE}=1"
        )


def check_training(config: Namespace) -> None:
    trainer = config.trainer
    if trainer.overfit_batches:
        raise UserError("--trainer.overfit_batches replaces the zoo's sampler: use --data.limit_train instead")
    for name in ("accumulate_grad_batches", "val_check_interval"):  # Lightning would divide by them
        if getattr(trainer, name) == 0:
            raise UserError(f"--trainer.{name}=0 is too low: leave it out, or give a larger value")
    if bool(config.from_stage) != bool(config.ckpt):
        raise UserError("--from_stage NAME and --ckpt FILE need each other; to resume a run, use --ckpt_path last")
    if config.from_stage and config.ckpt_path not in (None, "last"):
        raise UserError("--ckpt_path resumes a run, --from_stage starts a new one: use one of them")
    names = [stage.name for stage in config.stages or []]
    if config.from_stage and config.from_stage not in names:
        raise UserError(
            f"--from_stage={config.from_stage}: unknown stage; the experiment has {', '.join(names) or 'no stages'}"
        )
    if config.stages and trainer.max_epochs is not None:
        raise UserError("--trainer.max_epochs is not supported with stages: set --stages.NAME.epochs instead")
    if config.stages and trainer.max_steps != -1:
        raise UserError("--trainer.max_steps is not supported with stages: set --stages.NAME.epochs instead")
    if isinstance(trainer.strategy, str) and trainer.strategy.startswith(SHARDED):
        raise UserError(
            f"--trainer.strategy={trainer.strategy} is not supported: stages need unsharded weights; use ddp"
        )
