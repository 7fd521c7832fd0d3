"""The built-in sample as a corpus of its own, in any size."""

from __future__ import annotations

from typing import Any

from datamodules.base import TextDataModule
from datamodules.errors import UserError
from datamodules.prepare import Corpus
from datamodules.sample import SampleCorpus, sample_corpus


class Sample(TextDataModule):
    """Generated EU-act-like documents with a long tail of labels; needs no files.

    Args:
        num_documents: in all three splits together.
        num_labels: concepts, most of them rare.
        words_per_document: on average.
        labels_per_document: on average.
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
            raise UserError(f"the sample cannot be made: {error}") from error

    def find_corpus(self) -> Corpus:
        return sample_corpus(self.sample)
