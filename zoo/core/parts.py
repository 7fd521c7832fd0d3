"""Kinds of classes that settings name, the modules that offer them, and plug-ins."""

from __future__ import annotations

from importlib.metadata import entry_points
from types import ModuleType
from typing import NamedTuple

from zoo.core.console import warn
from zoo.core.errors import first_line

GROUP = "zoo.plugins"


class Kind(NamedTuple):
    """The module that offers the classes of a kind, and their base class as `module:name`."""

    module: str
    base: str


KINDS = {
    "heads": Kind("heads", "heads.base:Head"),
    "losses": Kind("heads.losses", "heads.loss_base:Loss"),
    "features": Kind("heads.blend", "heads.blend.features:PairFeatures"),
    "backbones": Kind("backbones", "backbones.base:Backbone"),
    "datamodules": Kind("datamodules", "datamodules.base:TextDataModule"),
    "callbacks": Kind("callbacks", "pytorch_lightning:Callback"),
    "optimizers": Kind("zoo.training.optimizers", "torch.optim:Optimizer"),
    "schedulers": Kind("callbacks", "torch.optim.lr_scheduler:LRScheduler"),
}


def load_plugins(package: str | None = None) -> list[ModuleType]:
    """Import the modules that installed packages register, so that YAML can name their classes.

    With `package`, only those in this top-level package.
    """
    modules = []
    for point in entry_points(group=GROUP):
        if package is not None and point.module.split(".")[0] != package:
            continue
        try:
            found = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a broken plug-in must not stop a run that does not need it, nor may sys.exit
            warn(f"plug-in {point.name} cannot be loaded: {first_line(error)}")
            continue
        if isinstance(found, ModuleType):
            modules.append(found)
        else:
            warn(f"plug-in {point.name} is left out: its entry point {point.value} is not a module")
    return modules
