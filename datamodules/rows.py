"""Encoded documents on disk: an Arrow file that is mapped into memory and never read as a whole."""

from __future__ import annotations

from collections.abc import Iterator
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


class EncodedRow(NamedTuple):
    id: str
    tokens: list[int]
    labels: list[int]
    values: list[float] | None = None  # of the tokens, where they are features


class RowWriter:
    """Writes encoded documents as they come, in record batches of exactly CHUNK rows but for the last."""

    def __init__(self, path: Path, values: bool = False) -> None:
        self._schema = SCHEMA.append(VALUES) if values else SCHEMA
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._waiting: list[EncodedRow] = []

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._writer.close()
        self._sink.close()

    def write(self, row: EncodedRow) -> None:
        self._waiting.append(row)
        if len(self._waiting) == CHUNK:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            columns = list(zip(*self._waiting, strict=True))[: len(self._schema)]
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self._waiting = []


class _Lists(NamedTuple):
    """A list column of one record batch: item i is values[offsets[i]:offsets[i + 1]], mapped, not copied."""

    offsets: np.ndarray
    values: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        return self.values[self.offsets[i] : self.offsets[i + 1]]


class EncodedRows(Dataset[Batch]):
    """Documents of one split; `rows[[3, 5, ~7]]` is a padded batch, its last row marked as not to be counted.

    A row number at or past the number of documents, r + c * len(rows), is copy c of document r.
    """

    def __init__(self, path: Path, pad_id: int) -> None:
        self.path, self.pad_id = path, pad_id
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [self._file.get_batch(i) for i in range(self._file.num_record_batches)]
        self._tokens = [_lists(batch.column("tokens")) for batch in batches]
        self._labels = [_lists(batch.column("labels")) for batch in batches]
        self._values: list[_Lists] | None = None  # of features; texts have none
        if VALUES.name in self._file.schema.names:
            self._values = [_lists(batch.column(VALUES.name)) for batch in batches]
        self.lengths = np.concatenate([np.diff(t.offsets) for t in self._tokens] or [np.zeros(0, dtype=np.int64)])

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


def _joined(columns: list[_Lists]) -> tuple[np.ndarray, np.ndarray]:
    """All lists of a column one after the other: where each starts, and their values."""
    counts = np.concatenate([np.diff(lists.offsets) for lists in columns] or [np.zeros(0, dtype=np.int64)])
    values = [lists.values[lists.offsets[0] : lists.offsets[-1]] for lists in columns]
    return np.concatenate([[0], counts.cumsum()]), np.concatenate(values or [np.zeros(0, dtype=np.int32)])


def _lists(column: pa.ListArray) -> _Lists:
    return _Lists(column.offsets.to_numpy().astype(np.int64), column.values.to_numpy())
