"""The built-in synthetic corpus, in any size."""

from __future__ import annotations

from typing import Any

from datamodules.base import TextDataModule
from datamodules.prepare.corpus import Corpus
from datamodules.synthetic import SampleCorpus, sample_corpus
from zoo.core.errors import UserError


class Sample(TextDataModule):
    """Synthetic EU acts with a long tail of labels; needs no files.

    Args:
        num_documents: number of documents in all three splits.
        num_labels: number of labels, most of them rare.
        words_per_document: mean number of words.
        labels_per_document: mean number of labels.
    """

    def __init__(
        self,
        num_documents: int = 3000,
        num_labels: int = 300,
        words_per_document: int = 250,
        labels_per_document: float = 4.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        try:
            self.sample = SampleCorpus(num_documents, num_labels, words_per_document, labels_per_document, self.seed)
        except ValueError as error:
            raise UserError(f"cannot generate the sample: {error}") from error

    def find_corpus(self) -> Corpus:
        return sample_corpus(self.sample)
