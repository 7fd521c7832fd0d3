"""Copies of documents with rare labels that differ a little from them: words are exchanged, words are left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch.utils.data import Dataset

from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from datamodules.rows import EncodedRows

EXCHANGE, WITH, DROP, SPARE = range(4)  # what a number is drawn for


@dataclass(frozen=True)
class Augmentation:
    """Which documents are copied in which stage, and what is done to a copy: words exchanged, then words left out.

    A copy is a function of the seed and its row number alone: the same in every epoch, process, worker and resume.

    Args:
        stage: whose documents come with copies.
        copies: of each document that has a tail label.
        keep: probability that a word stays.
        swap: share of the words that change places, or weights, in pairs.
        fraction: of the labels are head, the most frequent ones.
        seed: of the draws.
    """

    stage: str
    copies: int = 4
    keep: float | None = 0.8
    swap: float | None = 0.1
    fraction: float = 0.1
    seed: int = 0

    def with_copies(self, chosen: np.ndarray, targets: Targets, space: LabelSpace) -> np.ndarray:
        """Row numbers, and after them those of their copies; `targets` are of all training documents."""
        if chosen.max(initial=0) >= len(targets):
            raise UserError(f"stage {self.stage!r} draws copies of documents itself: TailAugment has no place there")
        head = int(space.head_by_fraction(self.fraction).sum())
        in_tail = targets.part(head, space.num_labels).counts.numpy() > 0
        tail = chosen[in_tail[chosen]]
        return np.concatenate([chosen, *(tail + copy * len(targets) for copy in range(1, self.copies + 1))])

    def with_bags(
        self, words: csr_array, targets: Targets, rows: np.ndarray, numbers: np.ndarray, documents: int
    ) -> tuple[csr_array, Targets]:
        """Documents as sparse rows of weights with their labels, and after them copies.

        Args:
            words: weights, such as TF-IDF.
            targets: labels of the same documents.
            rows: their row numbers in a corpus of so many `documents`.
            numbers: of copies of some of them.
            documents: training documents of the corpus.
        """
        place = np.zeros(documents, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        copied = place[numbers % documents]
        bags = self.of_bags(words[copied], numbers)
        order = np.concatenate([np.arange(len(rows)), copied])
        return csr_array(vstack([words, bags], format="csr")), targets.take(torch.from_numpy(order))

    def of_bags(self, words: csr_array, numbers: np.ndarray) -> csr_array:
        """Copies of documents that are sparse rows of weights; each row keeps its length."""
        before = _lengths(words)
        if self.swap is not None:
            words = swap(words, self.swap, numbers, self.seed)
        if self.keep is not None:
            words = drop(words, self.keep, numbers, self.seed)
        after = _lengths(words)
        scale = np.divide(before, after, out=np.ones_like(before), where=after > 0)
        data = words.data * scale.repeat(np.diff(words.indptr)).astype(words.data.dtype)
        return csr_array((data, words.indices, words.indptr), words.shape)

    def of_batch(self, batch: Batch, numbers: np.ndarray, special: np.ndarray) -> Batch:
        """The documents of a batch as copies of these numbers; those numbered -1 stay, and so do `special` tokens."""
        ids, mask = batch.ids.numpy().copy(), batch.mask.numpy()
        values = None if batch.values is None else batch.values.numpy().copy()
        free = mask & ~np.isin(ids, special) & (numbers >= 0)[:, None]
        sizes = free.sum(1)
        if self.swap is not None:  # of a feature and its value only the latter: the features of a document are a set
            moved = ids if values is None else values
            moved[free] = moved[free][exchanged(sizes, self.swap, numbers, self.seed)]
        alive = mask.copy()
        if self.keep is not None:
            alive[free] = kept(sizes, self.keep, numbers, self.seed)
        order = np.argsort(~alive, axis=1, kind="stable")[:, : alive.sum(1).max(initial=1)]
        alive = np.take_along_axis(alive, order, 1)
        # padding looks as before: a token that was left out must not be found there
        ids = np.where(alive, np.take_along_axis(ids, order, 1), special[0])
        if values is not None:
            values = np.where(alive, np.take_along_axis(values, order, 1), 0).astype(values.dtype)
        tensor = None if values is None else torch.from_numpy(values)
        return replace(batch, ids=torch.from_numpy(ids), mask=torch.from_numpy(alive), values=tensor)


class RowsWithCopies(Dataset[Batch]):
    """Rows whose numbers past the end are augmented copies; made where batches are, in worker processes too."""

    def __init__(self, rows: EncodedRows, augmentation: Augmentation, special: list[int]) -> None:
        self.rows, self.augmentation = rows, augmentation
        # the padding first
        self.special = np.array([rows.pad_id, *(token for token in special if token != rows.pad_id)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: list[int]) -> Batch:
        numbers = np.array([row if row >= 0 else ~row for row in rows])
        numbers[numbers < len(self.rows)] = -1
        batch = self.rows[rows]
        return batch if (numbers < 0).all() else self.augmentation.of_batch(batch, numbers, self.special)


def drop(words: csr_array, keep: float, numbers: np.ndarray, seed: int = 0) -> csr_array:
    """Each entry stays with probability `keep`, and of a row at least one; values stay as they are."""
    sizes = np.diff(words.indptr)
    alive = kept(sizes, keep, numbers, seed)
    starts = np.concatenate([[0], alive.cumsum()])[words.indptr].astype(words.indptr.dtype)
    return csr_array((words.data[alive], words.indices[alive], starts), words.shape)


def swap(words: csr_array, share: float, numbers: np.ndarray, seed: int = 0) -> csr_array:
    """Values of two entries of a row change places, max(1, share * entries / 2) times."""
    order = exchanged(np.diff(words.indptr), share, numbers, seed)
    return csr_array((words.data[order], words.indices, words.indptr), words.shape)


def kept(sizes: np.ndarray, keep: float, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Mask over the entries of lists of these sizes, one after the other."""
    lists = np.arange(len(sizes)).repeat(sizes)
    starts = sizes.cumsum() - sizes
    alive = uniform(seed, DROP, numbers[lists], np.arange(len(lists)) - starts[lists]) < keep
    empty = (np.bincount(lists[alive], minlength=len(sizes)) == 0) & (sizes > 0)
    alive[(starts + (uniform(seed, SPARE, numbers) * sizes).astype(np.int64))[empty]] = True
    return alive


def exchanged(sizes: np.ndarray, share: float, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Order of the entries of lists of these sizes, one after the other, with pairs within a list exchanged."""
    order, starts = np.arange(sizes.sum()), sizes.cumsum() - sizes
    times = np.where(sizes > 1, np.maximum(1, (share * sizes / 2).astype(np.int64)), 0)
    for turn in range(times.max(initial=0)):
        lists = (times > turn).nonzero()[0]
        size, number = sizes[lists], numbers[lists]
        one = (uniform(seed, EXCHANGE, number, turn) * size).astype(np.int64)
        other = (one + 1 + (uniform(seed, WITH, number, turn) * (size - 1)).astype(np.int64)) % size
        one, other = starts[lists] + one, starts[lists] + other
        order[one], order[other] = order[other], order[one]
    return order


def uniform(seed: int, *parts: int | np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), each a function of the seed and its parts alone (splitmix64): no generator for each row."""
    state = np.array([seed], dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = state * np.uint64(0xD1342543DE82EF95) + np.asarray(part).astype(np.uint64) + np.uint64(1)
            state = _mixed(state * np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(11)) * 2.0**-53


def _mixed(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = state ^ (state >> np.uint64(31))
    return mixed


def _lengths(words: csr_array) -> np.ndarray:
    rows = np.arange(words.shape[0]).repeat(np.diff(words.indptr))
    lengths: np.ndarray = np.sqrt(np.bincount(rows, words.data.astype(np.float64) ** 2, minlength=words.shape[0]))
    return lengths
