"""`zoo list`: the classes and experiments to choose from, including those of installed plug-ins."""

from __future__ import annotations

import inspect
import pkgutil
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from zoo.commands.static_index import concrete_classes
from zoo.commands.usage import first_sentence, page, section
from zoo.core.errors import UserError, printable
from zoo.core.parts import KINDS, Kind, load_plugins
from zoo.core.shipped import shipped_experiments

NAME_COLUMN = 28


def import_parts() -> list[ModuleType]:
    """Import all classes, including those of plug-ins, so that YAML can use their short names."""
    modules = [import_module(name) for name in dict.fromkeys(kind.module for kind in KINDS.values())]
    for module in modules:
        inspect.getmembers(module)  # resolves lazy names
    return [*modules, *load_plugins()]


def list_parts(*, experiments: str | None = None) -> None:
    """List heads, losses, backbones, corpora and experiments.

    Also lists callbacks, optimizers and learning rate schedulers, and the classes of installed plug-ins.

    Args:
        experiments: folder with experiment files (default: the experiments that ship with the zoo).

    Examples:
        zoo list
        zoo list --experiments my_experiments/
    """
    if experiments is not None and not Path(experiments).is_dir():
        raise UserError(f"`experiments={experiments}` is not a folder")
    plugins = load_plugins()
    found = {}
    for title, kind in KINDS.items():
        found[title] = {one.node.name: first_sentence(one.doc) for one in concrete_classes(*kind)}
        for module, member in plugin_classes(plugins, kind):
            found[title][member.__name__] = f"{printable(first_sentence(inspect.getdoc(member)))}  [{module.__name__}]"
    files = sorted(Path(experiments).glob("*.yaml") if experiments else shipped_experiments().values())
    found["experiments"] = {file.stem: leading_comment(file) for file in files}
    width = shutil.get_terminal_size().columns
    sys.stdout.write(page(*(section(title, rows, NAME_COLUMN, width) for title, rows in found.items())))


def plugin_classes(plugins: list[ModuleType], kind: Kind) -> Iterator[tuple[ModuleType, type]]:
    if kind.base.partition(":")[0] not in sys.modules:
        return  # no plug-in has imported this base
    base = pkgutil.resolve_name(kind.base)
    for module in plugins:
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, base) and not inspect.isabstract(member):
                yield module, member


def leading_comment(file: Path) -> str:
    lines = file.read_text("utf8").splitlines()
    return printable(first_sentence(" ".join(line.lstrip("# ") for line in lines if line.startswith("#"))))
