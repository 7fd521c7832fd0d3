"""Checks of the states that a run resumes from, so that a damaged `last.ckpt` ends in one line before the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Trainer
from torch import Tensor
from torch.optim import Optimizer

from zoo.core.errors import LARGEST, UserError, check_numbers, first_line
from zoo.core.lightning_internals import around_restore, loaded_states
from zoo.training.finite import non_finite
from zoo.training.trust import values_in

KINDS = {"loops": dict, "callbacks": dict, "optimizer_states": list, "epoch": int, "global_step": int}
COUNTERS = ("ready", "completed", "started", "processed", "is_last_batch", "_batches_that_stepped")
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")  # as large as their parameter
PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")  # of `ModelCheckpoint`, which removes such files


def check_resumable(checkpoint: dict[str, Any], file: Path) -> None:
    """Refuse a checkpoint without the states that a resume needs, or with counters or paths that no run writes."""
    wrong = [name for name, kind in KINDS.items() if not isinstance(checkpoint.get(name), kind)]
    if wrong or not isinstance(checkpoint["callbacks"].get("StageSchedule"), dict):
        raise damaged(file, f"its state of {(wrong or ['the stages'])[0]} is missing or of another kind")
    for name, value in values_in(checkpoint["loops"]):
        kinds = int if name in COUNTERS else int | dict | list | None
        if not isinstance(value, kinds) or (isinstance(value, int) and not 0 <= value <= LARGEST):
            raise damaged(file, f"its counter {name} is {str(value)[:20]!r}")
    for state in checkpoint["callbacks"].values():
        if isinstance(state, dict) and "best_model_path" in state:
            check_paths(state, file)


def check_paths(state: dict[str, Any], file: Path) -> None:
    """Refuse paths of checkpoints outside the folder of checkpoints."""
    best = state.get("best_k_models")
    for path in [*(state.get(name, "") for name in PATHS), *(best if isinstance(best, dict) else ())]:
        own = PurePath(str(path))
        if path and (".." in own.parts or not own.is_relative_to(str(state.get("dirpath")))):
            raise damaged(file, f"it names {str(path)[:80]!r}, which is not in the folder of its checkpoints")


def damaged(file: object, why: str) -> UserError:
    return UserError(f"{file} is damaged: {why}; start a new run")


def check_restored(trainer: Trainer) -> None:
    """Refuse states that do not fit this run: in one line, while they are restored or before the first step."""
    around_restore(trainer, restoring(trainer))


@contextmanager
def restoring(trainer: Trainer) -> Iterator[None]:
    schedules = [(config.scheduler, config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs]
    try:
        yield
        if trainer.ckpt_path and trainer.optimizers and trainer.state.fn == "fit":
            found, expected = len(loaded_states(trainer, "optimizer_states")), len(trainer.optimizers)
            if found != expected:
                raise ValueError(f"{found} states of {expected} optimizers")
        for optimizer in trainer.optimizers:
            check_optimizer(optimizer)
        for schedule, before in schedules:
            check_kinds(schedule.state_dict(), before, "the learning-rate schedule")
    except (UserError, MisconfigurationException, OSError):
        raise
    except Exception as error:  # states that no version of the zoo has written may fail anywhere
        raise damaged(trainer.ckpt_path, f"its states do not fit this run ({first_line(error)})") from error


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise a `ValueError` for states that the next step could not use."""
    for group in optimizer.param_groups:
        settings = {name: group[name] for name in optimizer.defaults}
        check_numbers(settings, "optimizer")
        check_kinds(settings, optimizer.defaults, "the optimizer")
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name == "step" and not 0 <= float(value) <= LARGEST:
                raise ValueError(f"the optimizer's number of steps is {float(value):g}")
            if name in MOMENTS and value is not None and value.shape != parameter.shape:
                raise ValueError(f"{name} of the optimizer has another shape than its parameter")
    if names := non_finite([list(optimizer.state.values())]):
        raise ValueError(f"the optimizer has NaN or infinite values: {names[0]}")


def check_kinds(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """Raise a `ValueError` if a setting has become a value of another kind."""
    for name in expected.keys() & found.keys():
        if not same_kind(found[name], expected[name]):
            raise ValueError(f"{name} of {what} is {str(found[name])[:20]!r}")


def same_kind(found: Any, expected: Any) -> bool:
    if expected is None:  # a number that is not known yet
        return found is None or kind(found) == "number"
    if isinstance(expected, list | tuple):
        return isinstance(found, list | tuple) and all(map(same_kind, found, expected))
    return kind(found) == kind(expected)


def kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "flag"
    is_number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return "number" if is_number else type(value).__name__
