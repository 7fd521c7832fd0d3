"""Which classes a checkpoint may name: those of the zoo, of torch.optim and of plug-ins, and of trusted modules."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from importlib import import_module
from inspect import isclass
from pkgutil import resolve_name
from typing import Any, get_args, get_type_hints

from jsonargparse import _common

from zoo.core.errors import UserError
from zoo.core.parts import KINDS, Kind, load_plugins

MODEL = (
    *(KINDS[name] for name in ("heads", "losses", "features", "backbones")),
    Kind("heads.blend", "heads.base:Head"),  # what `zoo blend` writes
)
DATA = (KINDS["datamodules"],)
RUN = (
    *KINDS.values(),
    Kind("torch.optim", "torch.optim:Optimizer"),
    Kind("torch.optim.lr_scheduler", "torch.optim.lr_scheduler:LRScheduler"),
    Kind("pytorch_lightning.cli", "torch.optim.lr_scheduler:LRScheduler"),
    Kind("pytorch_lightning.callbacks", "pytorch_lightning:Callback"),
)
# Callbacks with a path to write to, or with functions to call; the zoo adds its own ones without being asked.
WITHHELD = {
    *("KeepPredictions", "RunReport", "ModelCheckpoint", "OnExceptionCheckpoint", "BasePredictionWriter"),
    *("LambdaCallback", "ModelPruning", "LearningRateFinder", "BatchSizeFinder", "SpikeDetection"),
}
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
NEVER = {*sys.stdlib_module_names, "jsonargparse"}  # top-level modules that nobody can trust a checkpoint to use
MOST = 100_000  # values in a configuration: aliases in YAML can make a small text endless
LOCK = threading.RLock()


def import_paths(settings: Any, kinds: Sequence[Kind], trust: Sequence[str] = ()) -> set[str]:
    """Return the import paths of all classes that settings may name; refuse a `class_path` that is not allowed."""
    found = set(trust)
    for key, text in texts(settings):
        paths = public_paths(text, kinds) if NAME.fullmatch(text) else set()
        found |= paths
        if key == "class_path" and not paths and not is_trusted(text, trust):
            raise untrusted(text)
    return found


def texts(settings: Any) -> Iterator[tuple[Any, str]]:
    """Yield all texts in settings with their keys; a `class_path` that is no text is refused."""
    for key, value in values_in(settings):
        if isinstance(value, str):
            yield key, value
        elif key == "class_path":
            raise UserError(f"`class_path` is {str(value)[:80]!r}, not the name of a class")


def class_specs(settings: Any) -> Iterator[dict[str, Any]]:
    """Yield all settings with a `class_path`."""
    return (value for _, value in values_in(settings) if isinstance(value, dict) and "class_path" in value)


def values_in(settings: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all values in settings with their keys, None in a list."""
    rest: list[tuple[Any, Any]] = [(None, settings)]
    for _ in range(MOST):
        if not rest:
            return
        key, value = rest.pop()
        yield key, value
        if isinstance(value, dict):
            rest += value.items()
        elif isinstance(value, list | tuple):
            rest += ((None, item) for item in value)
    raise UserError(f"the configuration has more than {MOST:,} values")


def public_paths(path: str, kinds: Iterable[Kind]) -> set[str]:
    """Paths of a public class, given by one of them or by its name; none if these kinds have no such class."""
    module, _, name = path.rpartition(".")
    found: set[str] = set()
    for kind in kinds:
        if (one := public_class(kind, name)) is not None and (not module or module in homes(kind, one)):
            found |= {f"{home}.{name}" for home in homes(kind, one)} | settings_paths(one)
    if not found and module:
        for plugin in load_plugins(module.split(".")[0]):
            one = vars(plugin).get(name)
            if isclass(one) and module in (plugin.__name__, one.__module__) and is_part(one, kinds):
                found |= {f"{plugin.__name__}.{name}", f"{one.__module__}.{name}"} | settings_paths(one)
    return found


def public_class(kind: Kind, name: str) -> type | None:
    """The class of this name that the module of a kind exports."""
    if name in WITHHELD:
        return None
    module = import_module(kind.module)
    exported = getattr(module, "__all__", None)
    if name not in (vars(module) if exported is None else exported):
        return None
    found = getattr(module, name)
    if not isclass(found) or not issubclass(found, resolve_name(kind.base)):
        return None
    return found if exported is not None or found.__module__ == kind.module else None


def homes(kind: Kind, found: type) -> set[str]:
    """Modules that a class is exported from: that of its kind, its own, and the packages between them."""
    names = found.__module__.split(".")
    between = {".".join(names[:end]) for end in range(1, len(names) + 1)}
    return {kind.module, found.__module__} | {home for home in between if home.startswith(f"{kind.module}.")}


def settings_paths(found: type) -> set[str]:
    """Paths of the dataclasses among the types of a class's arguments; jsonargparse imports them by name."""
    paths: set[str] = set()
    for base in found.__mro__:
        with suppress(NameError, TypeError):  # annotations that only type checkers can resolve
            rest = list(get_type_hints(vars(base).get("__init__", object)).values())
            while rest:
                hint = rest.pop()
                rest += get_args(hint)
                if (
                    isclass(hint)
                    and is_dataclass(hint)
                    and (path := f"{hint.__module__}.{hint.__qualname__}") not in paths
                ):
                    paths |= {path} | settings_paths(hint)
    return paths


def is_part(found: type, kinds: Iterable[Kind]) -> bool:
    return any(issubclass(found, resolve_name(kind.base)) for kind in kinds)


def is_trusted(path: str, trust: Iterable[str]) -> bool:
    return any(path.startswith(f"{module}.") for module in trust)


def untrusted(path: str) -> UserError:
    module, path = path.rpartition(".")[0][:80], path[:80]
    if not NAME.fullmatch(module) or module.split(".")[0] in NEVER:
        return UserError(f"class {path} is not part of the zoo: the checkpoint is damaged or hostile")
    return UserError(f"class {path} is not part of the zoo; if you trust this module: `trust={module}`")


@contextmanager
def imports_limited_to(paths: Iterable[str]) -> Iterator[None]:
    """Let jsonargparse import only these classes, and what is in modules among them.

    Classes in settings without a type are not instantiated. The settings of jsonargparse belong to the process and
    cannot be undone with its public function; the lock keeps threads apart that load checkpoints.
    """
    settings = _common.parsing_settings
    with LOCK:
        before = dict(settings)
        settings["import_path_verdicts"] = {"*": False} | dict.fromkeys(paths, True)
        settings |= {"import_paths_enforced": True, "instantiate_subclass_spec_in_any": False}
        try:
            yield
        finally:
            settings.update(before)


def refusal(error: Exception) -> UserError:
    """One line for an error of jsonargparse about settings of a checkpoint."""
    message = " ".join(str(error).split())
    if found := DENIED.search(message):
        return untrusted(found[1])
    return UserError(f"the checkpoint needs classes or settings that are not available: {message}")


def check_trust(trust: Sequence[str]) -> tuple[str, ...]:
    """Refuse what is not the name of a module with classes of a user."""
    if isinstance(trust, str):
        raise TypeError("`trust` is a single string: pass a list of modules")
    for module in trust:
        if not NAME.fullmatch(module) or module.split(".")[0] in NEVER:
            raise UserError(f"`trust={module}` is not the name of a module with classes of yours, such as my_heads")
    return tuple(trust)
