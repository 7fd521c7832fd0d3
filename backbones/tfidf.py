"""TF-IDF weights of documents, the same for the matrix of a corpus and for batches."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from datamodules.batch import Batch, LabelSpace
from datamodules.prepare.bags import bag_width, bags
from zoo.core.errors import UserError, check_low


class TfIdf(nn.Module):
    """TF-IDF: (1 + ln(count)) * (1 + ln((1 + N) / (1 + df))), with documents of unit length.

    N is the number of training documents and df the number of those that have the word. Without `space.idf`, the
    second factor is 1.

    Args:
        min_documents: words in fewer training documents are dropped.
        sublinear: use 1 + ln(count); False uses counts, or feature values, as they are.
        lead: give the first `lead` words of a document, and pairs of neighbours among them, weights of their own, which
            together have the length of the rest; 0 turns it off. See `datamodules.prepare.bags`.
    """

    idf: Tensor  # (width,), 0 for dropped words

    def __init__(self, space: LabelSpace, min_documents: int = 2, sublinear: bool = True, lead: int = 0) -> None:
        super().__init__()
        check_low(1, min_documents=min_documents)
        check_low(0, lead=lead)
        self.pad_id, self.vocab_size, self.lead = space.pad_id, space.vocab_size, lead
        self.min_documents, self.sublinear, self.use_idf = min_documents, sublinear, space.idf
        self.register_buffer("idf", torch.zeros(bag_width(space.vocab_size, lead)))

    def learn(self, counts: csr_array) -> None:
        """Set `idf` from the word counts of the training documents, (documents, width)."""
        idf, frequency = smooth_idf(counts)
        if not self.use_idf:
            idf[:] = 1
        idf[frequency < self.min_documents] = 0
        idf[self.pad_id] = 0
        if not idf.any():
            raise UserError(f"no word is in {self.min_documents} training documents: lower min_documents")
        self.idf.copy_(torch.from_numpy(idf))

    def matrix(self, counts: csr_array) -> csr_array:
        """Weights (documents, width) of a matrix of counts, in single precision."""
        values = torch.from_numpy(counts.data.astype(np.float32))
        data = (damped(values) if self.sublinear else values).numpy() * self.idf.cpu().numpy()[counts.indices]
        kept = np.concatenate([[0], (data != 0).cumsum()])  # nonzero weights before each position
        starts = kept[counts.indptr].astype(counts.indptr.dtype)
        indices, data = counts.indices[data != 0], data[data != 0]
        if self.lead:
            row = np.arange(len(starts) - 1).repeat(np.diff(starts))
            body = np.bincount(row[indices < self.vocab_size], minlength=len(starts) - 1)  # before the lead in a row
            data = unit_segments(data, np.append(np.stack([starts[:-1], starts[:-1] + body], 1), starts[-1]))
        return csr_array((unit_segments(data, starts), indices, starts), counts.shape)

    def counts(self, batch: Batch) -> csr_array:
        """Word counts of a batch, (batch, width)."""
        mask = batch.mask.cpu().numpy()
        values = None if batch.values is None else batch.values.cpu().numpy()[mask]
        starts = np.concatenate([[0], mask.sum(1).cumsum()])
        return bags(batch.ids.cpu().numpy()[mask], starts, values, self.vocab_size, self.lead)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sorted word ids (batch, length) and their weights, which are 0 on padding and repeated words."""
        ids, order = batch.ids.masked_fill(~batch.mask, self.pad_id).sort(dim=1, stable=True)
        values = torch.ones_like(ids, dtype=self.idf.dtype) if batch.values is None else batch.values.gather(1, order)
        first = ids != ids.roll(1, dims=1)  # first occurrence of a word
        first[:, 0] = True
        place = first.cumsum(1) - 1
        counts = torch.zeros_like(values).scatter_add_(1, place, values).gather(1, place)
        weights = (damped(counts) if self.sublinear else counts) * self.idf[ids] * first
        return ids, nn.functional.normalize(weights, dim=1)


def tfidf(counts: csr_array, use_idf: bool = True) -> csr_array:
    """Sublinear TF-IDF of a corpus with all its words, (documents, width), in single precision."""
    weights = damped(torch.from_numpy(counts.data.astype(np.float32))).numpy()
    if use_idf:
        weights *= smooth_idf(counts)[0].astype(np.float32)[counts.indices]
    return csr_array((unit_segments(weights, counts.indptr), counts.indices, counts.indptr), counts.shape)


def smooth_idf(counts: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """1 + ln((1 + N) / (1 + df)) and df of each word, (width,)."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    return 1 + np.log((1 + counts.shape[0]) / (1 + frequency)), frequency


def damped(counts: Tensor) -> Tensor:
    """1 + ln(count); values below 1, which features may have, are kept."""
    return torch.where(counts > 1, 1 + counts.clamp_min(1).log(), counts)


def unit_segments(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Scale the values between consecutive `starts` to Euclidean length 1; segments of zeros stay."""
    sizes = np.diff(starts)
    lengths, filled = np.ones(len(sizes)), sizes > 0
    if filled.any():  # in double precision: the square of a float may be 0 or infinite
        squares = np.square(values, dtype=np.float64)
        lengths[filled] = np.sqrt(np.add.reduceat(squares, starts[:-1][filled]))
    lengths[lengths == 0] = 1
    scaled: np.ndarray = values / lengths.astype(values.dtype).repeat(sizes)
    return scaled
