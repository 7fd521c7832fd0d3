"""Encoded documents on disk: an Arrow file that is mapped into memory and never read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.bags import bags
from datamodules.batch import Batch, Targets

CHUNK = 1024  # rows in a record batch: row i is in batch i // CHUNK
SCHEMA = pa.schema({"id": pa.string(), "tokens": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})
VALUES = pa.field("values", pa.list_(pa.float32()))  # of the tokens, in a corpus of features


class RowWriter:
    """Writes encoded documents as they come, in record batches of exactly CHUNK rows but for the last."""

    def __init__(self, path: Path, values: bool = False) -> None:
        self.schema = SCHEMA.append(VALUES) if values else SCHEMA
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self.schema)
        self._waiting: list[pa.RecordBatch] = []

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush(all_rows=True)
        self._writer.close()
        self._sink.close()

    def write_batch(self, rows: pa.RecordBatch) -> None:
        """Any number of documents at once."""
        self._waiting.append(rows)
        self._flush()

    def _flush(self, all_rows: bool = False) -> None:
        size = sum(map(len, self._waiting))
        whole = size if all_rows else size - size % CHUNK
        if whole:
            rows = pa.concat_batches(self._waiting)
            self._waiting = [rows.slice(whole)] if whole < size else []
            for start in range(0, whole, CHUNK):
                self._writer.write_batch(rows.slice(start, min(CHUNK, whole - start)))


def distinct_pairs(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs in order, each once; values are below 2**32. Much faster than numpy's `unique`, which hashes them."""
    keys = rows << 32 | values
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) != 0]
    return keys >> 32, keys & (2**32 - 1)


class Lists(NamedTuple):
    """Lists one after the other: item i is values[offsets[i]:offsets[i + 1]]."""

    offsets: np.ndarray
    values: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @classmethod
    def of_column(cls, column: pa.ListArray) -> Lists:
        """A column of a record batch, mapped where that is, not copied."""
        return cls(column.offsets.to_numpy(), column.values.to_numpy())

    @classmethod
    def of_sizes(cls, sizes: Sequence[int] | np.ndarray, values: np.ndarray) -> Lists:
        """Lists of these sizes."""
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return cls(offsets, values)

    @property
    def sizes(self) -> np.ndarray:
        sizes: np.ndarray = np.diff(self.offsets)
        return sizes

    @property
    def rows(self) -> np.ndarray:
        """The list that each value is in."""
        return np.arange(len(self.offsets) - 1).repeat(self.sizes)

    def chosen(self, kept: np.ndarray) -> Lists:
        """Without the values where the mask says False."""
        before = np.concatenate([[0], kept.cumsum()])
        return Lists(before[self.offsets], self.values[kept])

    def sets(self) -> Lists:
        """Each list sorted, and each of its values once."""
        rows, values = distinct_pairs(self.rows, self.values)
        sizes = np.bincount(rows, minlength=len(self.offsets) - 1)
        return Lists.of_sizes(sizes, values.astype(self.values.dtype))

    def column(self) -> pa.ListArray:
        return pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), pa.array(self.values))


class Columns(NamedTuple):
    """Some documents, column by column; token i has value i where tokens are features."""

    ids: pa.StringArray
    tokens: Lists
    labels: Lists
    values: np.ndarray | None = None

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Columns:
        tokens, labels = (Lists.of_column(batch.column(name)) for name in ("tokens", "labels"))
        values = batch.column(VALUES.name).values.to_numpy() if VALUES.name in batch.schema.names else None
        return cls(batch.column("id"), tokens, labels, values)

    def batch(self) -> pa.RecordBatch:
        columns = [self.ids, self.tokens.column(), self.labels.column()]
        if self.values is None:
            return pa.record_batch(columns, schema=SCHEMA)
        values = Lists(self.tokens.offsets, self.values).column()
        return pa.record_batch([*columns, values], schema=SCHEMA.append(VALUES))


def stored_columns(path: Path) -> Iterator[Columns]:
    """Documents of a file, a record batch at a time."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        for i in range(file.num_record_batches):
            yield Columns.of_batch(file.get_batch(i))


class EncodedRows(Dataset[Batch]):
    """Documents of one split; `rows[[3, 5, ~7]]` is a padded batch, its last row marked as not to be counted.

    A row number at or past the number of documents, r + c * len(rows), is copy c of document r.
    """

    def __init__(self, path: Path, pad_id: int) -> None:
        self.path, self.pad_id = path, pad_id
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [self._file.get_batch(i) for i in range(self._file.num_record_batches)]
        self._tokens = [Lists.of_column(batch.column("tokens")) for batch in batches]
        self._labels = [Lists.of_column(batch.column("labels")) for batch in batches]
        self._values: list[Lists] | None = None  # of features; texts have none
        if VALUES.name in self._file.schema.names:
            self._values = [Lists.of_column(batch.column(VALUES.name)) for batch in batches]
        self.lengths = np.concatenate([tokens.sizes for tokens in self._tokens] or [np.zeros(0, dtype=np.int32)])

    def __reduce__(self) -> tuple[type[EncodedRows], tuple[Path, int]]:
        return EncodedRows, (self.path, self.pad_id)  # a worker process maps the file anew

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(self) -> Iterator[str]:
        """The documents' own ids, in order."""
        for i in range(self._file.num_record_batches):
            yield from self._file.get_batch(i).column("id").to_pylist()

    def token_counts(self, vocab_size: int, lead: int = 0) -> csr_array:
        """How often each document has each token, or with which value, (documents, vocab_size); see `bags`."""
        starts, tokens = _joined(self._tokens)
        return bags(tokens, starts, None if self._values is None else _joined(self._values)[1], vocab_size, lead)

    def targets(self) -> Targets:
        """Labels of all documents."""
        starts, values = _joined(self._labels)
        return Targets(torch.from_numpy(starts), torch.from_numpy(values.astype(np.int64)))

    def __getitem__(self, rows: list[int]) -> Batch:
        places = [(row if row >= 0 else ~row) % len(self) for row in rows]
        tokens = [self._tokens[p // CHUNK][p % CHUNK] for p in places]
        labels = [self._labels[p // CHUNK][p % CHUNK] for p in places]
        ids, mask = pad(tokens, self.pad_id)
        indptr = torch.tensor([0, *map(len, labels)]).cumsum(0)
        indices = torch.from_numpy(np.concatenate(labels).astype(np.int64))
        values = None
        if self._values is not None:
            values = pad_values([self._values[p // CHUNK][p % CHUNK] for p in places], mask)
        return Batch(ids, mask, Targets(indptr, indices), torch.tensor([max(row, -1) for row in rows]), values)


def pad(tokens: list[np.ndarray], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids as one (batch, length) tensor, and the mask of real tokens."""
    lengths = np.array([len(t) for t in tokens])
    ids = np.full((len(tokens), lengths.max()), pad_id, dtype=np.int64)
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    ids[mask] = np.concatenate(tokens)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def pad_values(values: list[np.ndarray], mask: Tensor) -> Tensor:
    """Values of features in the places that their ids have, 0 elsewhere, (batch, length)."""
    padded = torch.zeros(mask.shape)
    padded[mask] = torch.from_numpy(np.concatenate(values).astype(np.float32))
    return padded


def _joined(columns: list[Lists]) -> tuple[np.ndarray, np.ndarray]:
    """All lists of a column one after the other: where each starts, and their values."""
    counts = np.concatenate([lists.sizes for lists in columns] or [np.zeros(0, dtype=np.int64)])
    values = [lists.values[lists.offsets[0] : lists.offsets[-1]] for lists in columns]
    return np.concatenate([[0], counts.cumsum(dtype=np.int64)]), np.concatenate(values or [np.zeros(0, dtype=np.int32)])
