"""Checks of a run's configuration that no class makes itself: names of files, classes, and numbers anywhere."""

from __future__ import annotations

import inspect
import math
import pkgutil
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from zoo.core.console import note
from zoo.core.errors import MAX_SEED, UserError, check_range, first_line
from zoo.core.settings import flattened, parse_yaml


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
