"""What there is to choose from, here and in installed plug-ins."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytorch_lightning as pl
from rich.console import Console
from rich.table import Table
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import backbones
import callbacks
import datamodules
import heads
from datamodules.progress import note
from zoo import optimizers
from zoo.verbs import first_sentence

GROUP = "zoo.plugins"
PARTS = [heads, backbones, datamodules, callbacks, optimizers]
for part in PARTS:
    inspect.getmembers(part)  # imports what a package offers: a short name in YAML is looked up among known classes
KINDS: dict[str, type] = {
    "heads": heads.Head,
    "backbones": backbones.Backbone,
    "datamodules": datamodules.TextDataModule,
    "callbacks": pl.Callback,
    "optimizers": Optimizer,
    "schedulers": LRScheduler,
}


def load_plugins() -> list[ModuleType]:
    """Import the modules that installed packages offer, so that YAML may name their classes."""
    modules = []
    for point in entry_points(group=GROUP):
        try:
            modules.append(point.load())
        except Exception as error:  # another's mistake must not stop a run that does not need it
            note(f"plug-in {point.name} cannot be loaded: {error}")
    return modules


def list_parts(experiments: str = "experiments") -> None:
    """Heads, backbones, datamodules, callbacks, optimizers, schedulers and experiments.

    Args:
        experiments: folder of experiment files.
    """
    console = Console()
    modules = [*PARTS, *load_plugins()]
    for kind, base in KINDS.items():
        table = plain_table(kind)
        for module in modules:
            for name, member in inspect.getmembers(module, inspect.isclass):
                if issubclass(member, base) and not inspect.isabstract(member):
                    origin = "" if module in PARTS else f"  \\[{module.__name__}]"
                    table.add_row(name, first_sentence(inspect.getdoc(member)) + origin)
        console.print(table)
    table = plain_table("experiments")
    for file in sorted(Path(experiments).glob("*.yaml")):
        table.add_row(file.stem, leading_comment(file))
    console.print(table)


def plain_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2))


def leading_comment(file: Path) -> str:
    lines = file.read_text("utf8").splitlines()
    return first_sentence(" ".join(line.lstrip("# ") for line in lines if line.startswith("#")))
