"""Corpora: files in, `Batch` and `LabelSpace` out."""

from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.builtin import Sample
from datamodules.eurlex import EurLex
from datamodules.reuters import Reuters
from datamodules.text import TextFiles

__all__ = [
    "Batch",
    "EurLex",
    "LabelSpace",
    "Reuters",
    "Sample",
    "Targets",
    "TextDataModule",
    "TextFiles",
]
