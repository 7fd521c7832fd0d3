"""Corpora: files in, `Batch` and `LabelSpace` out."""

from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.builtin import Sample
from datamodules.corpora import Aapd, Amazon670K, AmazonCat, Bibtex, Delicious, EurLex4K, EurLex4KBow, Rcv1, Wiki10
from datamodules.eurlex import EurLex
from datamodules.hub_dataset import HubDataset
from datamodules.reuters import Reuters
from datamodules.text import TextFiles
from datamodules.xmc import SparseFiles

__all__ = [
    "Aapd",
    "Amazon670K",
    "AmazonCat",
    "Batch",
    "Bibtex",
    "Delicious",
    "EurLex",
    "EurLex4K",
    "EurLex4KBow",
    "HubDataset",
    "LabelSpace",
    "Rcv1",
    "Reuters",
    "Sample",
    "SparseFiles",
    "Targets",
    "TextDataModule",
    "TextFiles",
    "Wiki10",
]
