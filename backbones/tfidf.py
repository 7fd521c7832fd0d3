"""Words of documents with their weights, the same for matrices of whole corpora and for batches."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from datamodules.bags import bag_width, bags
from datamodules.batch import Batch, LabelSpace
from datamodules.errors import UserError


class TfIdf(nn.Module):
    """Weights of words: 1 + ln(count), times 1 + ln((1 + N) / (1 + documents that have it)); documents get length 1.

    Learned from counts of the training documents; what it learns lives in the checkpoint.

    Args:
        min_documents: words that fewer training documents have are left out.
        sublinear: count by the logarithm; False takes counts, or values of features, as they are.
        lead: words among the first so many of a document, and pairs of neighbours there, have weights of their own,
            together as long as those of the whole document; 0 for none. See `datamodules.bags`.
    """

    idf: Tensor  # (width,), 0 for words that are left out

    def __init__(self, space: LabelSpace, min_documents: int = 2, sublinear: bool = True, lead: int = 0) -> None:
        super().__init__()
        self.pad_id, self.vocab_size, self.lead = space.pad_id, space.vocab_size, lead
        self.min_documents, self.sublinear = min_documents, sublinear
        self.register_buffer("idf", torch.zeros(bag_width(space.vocab_size, lead)))

    def learn(self, counts: csr_array) -> None:
        """From the counts of each word in each training document, (documents, width)."""
        documents = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = 1 + np.log((1 + counts.shape[0]) / (1 + documents))
        idf[documents < self.min_documents] = 0
        idf[self.pad_id] = 0
        if not idf.any():
            raise UserError(f"no word is in {self.min_documents} training documents: lower min_documents")
        self.idf.copy_(torch.from_numpy(idf))

    def matrix(self, counts: csr_array) -> csr_array:
        """Weights for a matrix of counts, in single precision."""
        idf = self.idf.cpu().numpy()
        data = self._damped(torch.from_numpy(counts.data.astype(np.float32))).numpy() * idf[counts.indices]
        kept = np.concatenate([[0], (data != 0).cumsum()])  # of all that comes before a place
        starts = kept[counts.indptr].astype(counts.indptr.dtype)
        indices, data = counts.indices[data != 0], data[data != 0]
        row = np.arange(len(starts) - 1).repeat(np.diff(starts))
        if self.lead:
            data /= _lengths(2 * row + (indices >= self.vocab_size), data)
        return csr_array((data / _lengths(row, data), indices, starts), counts.shape)

    def counts(self, batch: Batch) -> csr_array:
        """How often each document of a batch has each word, (batch, width)."""
        mask = batch.mask.cpu().numpy()
        values = None if batch.values is None else batch.values.cpu().numpy()[mask]
        starts = np.concatenate([[0], mask.sum(1).cumsum()])
        return bags(batch.ids.cpu().numpy()[mask], starts, values, self.vocab_size, self.lead)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Words (batch, length) of each document, and their weights, 0 on padding and on repeats of a word."""
        ids, order = batch.ids.masked_fill(~batch.mask, self.pad_id).sort(dim=1, stable=True)
        values = torch.ones_like(ids, dtype=self.idf.dtype) if batch.values is None else batch.values.gather(1, order)
        first = torch.ones_like(ids, dtype=torch.bool)  # where a word stands for the first time
        first[:, 1:] = ids[:, 1:] != ids[:, :-1]
        place = first.cumsum(1) - 1
        counts = torch.zeros_like(values).scatter_add_(1, place, values).gather(1, place)
        weights = self._damped(counts) * self.idf[ids] * first
        return ids, nn.functional.normalize(weights, dim=1)

    def _damped(self, counts: Tensor) -> Tensor:
        """1 + ln(count); what is less than 1, as values of features may be, stays."""
        return torch.where(counts > 1, 1 + counts.clamp_min(1).log(), counts) if self.sublinear else counts


def _lengths(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The Euclidean length of its group, for each value."""
    squares = values.astype(np.float64) ** 2  # of a float they may be 0 or infinite
    lengths: np.ndarray = np.sqrt(np.bincount(group, squares))[group].astype(np.float32)
    return lengths
