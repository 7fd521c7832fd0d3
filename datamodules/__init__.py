"""Corpora: files in, `Batch` and `LabelSpace` out."""

from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.builtin import Sample
from datamodules.eurlex import EurLex
from datamodules.reuters import Reuters
from datamodules.text import TextFiles
from datamodules.xmc import Bibtex, Delicious, SparseFiles

__all__ = [
    "Batch",
    "Bibtex",
    "Delicious",
    "EurLex",
    "LabelSpace",
    "Reuters",
    "Sample",
    "SparseFiles",
    "Targets",
    "TextDataModule",
    "TextFiles",
]
