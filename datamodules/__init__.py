"""Corpora: files in, `Batch` and `LabelSpace` out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.base import TextDataModule as TextDataModule
    from datamodules.batch import Batch as Batch
    from datamodules.batch import LabelSpace as LabelSpace
    from datamodules.batch import Targets as Targets
    from datamodules.builtin import Sample as Sample
    from datamodules.corpora import Aapd as Aapd
    from datamodules.corpora import Amazon670K as Amazon670K
    from datamodules.corpora import AmazonCat as AmazonCat
    from datamodules.corpora import Bibtex as Bibtex
    from datamodules.corpora import Delicious as Delicious
    from datamodules.corpora import EurLex4K as EurLex4K
    from datamodules.corpora import EurLex4KBow as EurLex4KBow
    from datamodules.corpora import Rcv1 as Rcv1
    from datamodules.corpora import Wiki10 as Wiki10
    from datamodules.eurlex import EurLex as EurLex
    from datamodules.hub_dataset import HubDataset as HubDataset
    from datamodules.reuters import Reuters as Reuters
    from datamodules.text import TextFiles as TextFiles
    from datamodules.xmc import SparseFiles as SparseFiles

# Imported when they are asked for: commands that only read files do not wait seconds for Lightning.
PLACES = {
    "base": ["TextDataModule"],
    "batch": ["Batch", "LabelSpace", "Targets"],
    "builtin": ["Sample"],
    "corpora": ["Aapd", "Amazon670K", "AmazonCat", "Bibtex", "Delicious", "EurLex4K", "EurLex4KBow", "Rcv1", "Wiki10"],
    "eurlex": ["EurLex"],
    "hub_dataset": ["HubDataset"],
    "reuters": ["Reuters"],
    "text": ["TextFiles"],
    "xmc": ["SparseFiles"],
}
MODULES = {name: module for module, names in PLACES.items() for name in names}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return [*globals(), *MODULES]
