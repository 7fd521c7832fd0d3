"""Augmented copies of documents with tail labels: words swap places, and words are dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch.utils.data import Dataset

from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.rows import EncodedRows
from zoo.core.errors import UserError
from zoo.core.hashing import mix64

SWAP, PARTNER, DROP, SPARE = range(4)  # purposes of random numbers, so that draws are independent


@dataclass(frozen=True)
class Augmentation:
    """Adds augmented copies of documents with tail labels to the training documents of one stage.

    A copy depends on the seed and its row number only, so it is the same in every epoch, process and resumed run.

    Args:
        stage: name of the stage.
        copies: number of copies of each document that has a tail label.
        keep: probability of keeping a word; None keeps all.
        swap: share of the words that swap places (or weights) in pairs; None swaps none.
        fraction: share of the labels, the most frequent ones, that are head labels.
        seed: random seed.
    """

    stage: str
    copies: int = 4
    keep: float | None = 0.8
    swap: float | None = 0.1
    fraction: float = 0.1
    seed: int = 0

    def with_copies(self, chosen: np.ndarray, targets: Targets, space: LabelSpace) -> np.ndarray:
        """Append the row numbers of copies to row numbers; `targets` belong to all training documents."""
        if chosen.max(initial=0) >= len(targets):
            raise UserError(f"stage {self.stage!r} already samples copies of documents: remove TailAugment")
        head = int(space.head_by_fraction(self.fraction).sum())
        in_tail = targets.part(head, space.num_labels).counts.numpy() > 0
        tail = chosen[in_tail[chosen]]
        return np.concatenate([chosen, *(tail + copy * len(targets) for copy in range(1, self.copies + 1))])

    def append_copies(
        self, words: csr_array, targets: Targets, rows: np.ndarray, numbers: np.ndarray, documents: int
    ) -> tuple[csr_array, Targets]:
        """Append augmented copies to documents that are sparse weight vectors.

        Args:
            words: weights, such as TF-IDF.
            targets: labels of the same documents.
            rows: row numbers of the documents in the training set.
            numbers: row numbers of the copies.
            documents: number of documents in the training set.
        """
        place = np.zeros(documents, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        copied = place[numbers % documents]
        copies = self.augment_bags(words[copied], numbers)
        order = np.concatenate([np.arange(len(rows)), copied])
        return csr_array(vstack([words, copies], format="csr")), targets.take(torch.from_numpy(order))

    def augment_bags(self, words: csr_array, numbers: np.ndarray) -> csr_array:
        """Augment sparse weight vectors; each row keeps its norm."""
        before = _row_norms(words)
        if self.swap is not None:
            words = swap_values(words, self.swap, numbers, self.seed)
        if self.keep is not None:
            words = drop_entries(words, self.keep, numbers, self.seed)
        after = _row_norms(words)
        scale = np.divide(before, after, out=np.ones_like(before), where=after > 0)
        data = words.data * scale.repeat(np.diff(words.indptr)).astype(words.data.dtype)
        return csr_array((data, words.indices, words.indptr), words.shape)

    def augment_batch(self, batch: Batch, numbers: np.ndarray, special: np.ndarray) -> Batch:
        """Augment the documents of a batch.

        Args:
            batch: documents.
            numbers: row number of each as a copy; -1 leaves the document unchanged.
            special: ids of special tokens, which stay in place; the first is the padding id.
        """
        ids, mask = batch.ids.numpy().copy(), batch.mask.numpy()
        values = None if batch.values is None else batch.values.numpy().copy()
        free = mask & ~np.isin(ids, special) & (numbers >= 0)[:, None]
        sizes = free.sum(1)
        if self.swap is not None:  # features have no order: swap their values
            moved = ids if values is None else values
            moved[free] = moved[free][swapped_order(sizes, self.swap, numbers, self.seed)]
        alive = mask.copy()
        if self.keep is not None:
            alive[free] = keep_mask(sizes, self.keep, numbers, self.seed)
        order = np.argsort(~alive, axis=1, kind="stable")[:, : alive.sum(1).max(initial=1)]
        alive = np.take_along_axis(alive, order, 1)
        # Overwrite dropped tokens with padding: no model may see them.
        ids = np.where(alive, np.take_along_axis(ids, order, 1), special[0])
        if values is not None:
            values = np.where(alive, np.take_along_axis(values, order, 1), 0).astype(values.dtype)
        tensor = None if values is None else torch.from_numpy(values)
        return replace(batch, ids=torch.from_numpy(ids), mask=torch.from_numpy(alive), values=tensor)


class RowsWithCopies(Dataset[Batch]):
    """Encoded rows whose row numbers past the end are augmented copies, made on the fly in the data loader."""

    def __init__(self, rows: EncodedRows, augmentation: Augmentation, special: list[int]) -> None:
        self.rows, self.augmentation = rows, augmentation
        # `augment_batch` expects the padding id first
        self.special = np.array([rows.pad_id, *(token for token in special if token != rows.pad_id)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: list[int]) -> Batch:
        numbers = np.array([row if row >= 0 else ~row for row in rows])
        numbers[numbers < len(self.rows)] = -1
        batch = self.rows[rows]
        return batch if (numbers < 0).all() else self.augmentation.augment_batch(batch, numbers, self.special)


def drop_entries(words: csr_array, keep: float, numbers: np.ndarray, seed: int = 0) -> csr_array:
    """Keep each entry with probability `keep`, and at least one per row."""
    sizes = np.diff(words.indptr)
    alive = keep_mask(sizes, keep, numbers, seed)
    starts = np.concatenate([[0], alive.cumsum()])[words.indptr].astype(words.indptr.dtype)
    return csr_array((words.data[alive], words.indices[alive], starts), words.shape)


def swap_values(words: csr_array, share: float, numbers: np.ndarray, seed: int = 0) -> csr_array:
    """Swap the values of two entries of a row, max(1, share * entries / 2) times."""
    order = swapped_order(np.diff(words.indptr), share, numbers, seed)
    return csr_array((words.data[order], words.indices, words.indptr), words.shape)


def keep_mask(sizes: np.ndarray, keep: float, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Mask of kept entries over concatenated lists of these sizes; at least one per list is kept."""
    lists = np.arange(len(sizes)).repeat(sizes)
    starts = sizes.cumsum() - sizes
    alive = uniform(seed, DROP, numbers[lists], np.arange(len(lists)) - starts[lists]) < keep
    empty = (np.bincount(lists[alive], minlength=len(sizes)) == 0) & (sizes > 0)
    alive[(starts + (uniform(seed, SPARE, numbers) * sizes).astype(np.int64))[empty]] = True
    return alive


def swapped_order(sizes: np.ndarray, share: float, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Permutation of the entries of concatenated lists of these sizes that swaps pairs within each list."""
    order, starts = np.arange(sizes.sum()), sizes.cumsum() - sizes
    times = np.where(sizes > 1, np.maximum(1, (share * sizes / 2).astype(np.int64)), 0)
    for turn in range(times.max(initial=0)):
        lists = (times > turn).nonzero()[0]
        size, number = sizes[lists], numbers[lists]
        one = (uniform(seed, SWAP, number, turn) * size).astype(np.int64)
        other = (one + 1 + (uniform(seed, PARTNER, number, turn) * (size - 1)).astype(np.int64)) % size
        one, other = starts[lists] + one, starts[lists] + other
        order[one], order[other] = order[other], order[one]
    return order


def uniform(seed: int, *parts: int | np.ndarray) -> np.ndarray:
    """Hash the seed and the parts to numbers in [0, 1), without one random generator per row (SplitMix64)."""
    state = np.array([seed], dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = state * np.uint64(0xD1342543DE82EF95) + np.asarray(part).astype(np.uint64) + np.uint64(1)
            state = mix64(state * np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(11)) * 2.0**-53


def _row_norms(words: csr_array) -> np.ndarray:
    rows = np.arange(words.shape[0]).repeat(np.diff(words.indptr))
    norms: np.ndarray = np.sqrt(np.bincount(rows, words.data.astype(np.float64) ** 2, minlength=words.shape[0]))
    return norms
