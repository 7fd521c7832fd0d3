"""Datamodules: corpora, their preparation, and the batches that models are trained on."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from datamodules.base import TextDataModule
    from datamodules.batch import Batch, LabelSpace, Targets
    from datamodules.corpora.eurlex import EurLex
    from datamodules.corpora.hub_dataset import HubDataset
    from datamodules.corpora.papers import (
        Aapd,
        Amazon670K,
        AmazonCat,
        Bibtex,
        Bills,
        Delicious,
        EurLex4K,
        EurLex4KBow,
        Rcv1,
        Reuters,
        Wiki10,
    )
    from datamodules.corpora.sample import Sample
    from datamodules.corpora.sparse_files import SparseFiles
    from datamodules.corpora.text_files import TextFiles
    from datamodules.corpora.titled import LfAmazonTitles131K, LfWikipedia500K

__all__ = [
    "Aapd",
    "Amazon670K",
    "AmazonCat",
    "Batch",
    "Bibtex",
    "Bills",
    "Delicious",
    "EurLex",
    "EurLex4K",
    "EurLex4KBow",
    "HubDataset",
    "LabelSpace",
    "LfAmazonTitles131K",
    "LfWikipedia500K",
    "Rcv1",
    "Reuters",
    "Sample",
    "SparseFiles",
    "Targets",
    "TextDataModule",
    "TextFiles",
    "Wiki10",
]
__getattr__, __dir__ = lazy_names(__name__)
