"""Encoded documents in memory-mapped Arrow files."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.batch import Batch, Targets
from datamodules.prepare.bags import bags
from zoo.core.ragged import Lists

CHUNK = 1024  # rows in a record batch; row i is in batch i // CHUNK
SCHEMA = pa.schema({"id": pa.string(), "tokens": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})
VALUES = pa.field("values", pa.list_(pa.float32()))  # of tokens that are features


class RowWriter:
    """Writer of encoded documents, in record batches of exactly CHUNK rows except for the last."""

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


class Columns(NamedTuple):
    """Columns of several documents; `values` are those of the tokens if they are features."""

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
    """Iterate over the record batches of a file."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        for i in range(file.num_record_batches):
            yield Columns.of_batch(file.get_batch(i))


class EncodedRows(Dataset[Batch]):
    """Dataset of one split: `rows[[3, 5, ~7]]` is a padded batch, in which `~7` marks row 7 as not to be counted.

    Row numbers past the end are copies: r + c * len(rows) is copy c of document r.
    """

    def __init__(self, path: Path, pad_id: int, window: int = 0) -> None:
        self.path, self.pad_id, self.window = path, pad_id, window
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [self._file.get_batch(i) for i in range(self._file.num_record_batches)]
        columns = {name: [Lists.of_column(b.column(name)) for b in batches] for name in self._file.schema.names[1:]}
        self._tokens, self._labels, self._values = columns["tokens"], columns["labels"], columns.get(VALUES.name)
        self.lengths = np.concatenate([tokens.sizes for tokens in self._tokens] or [np.zeros(0, dtype=np.int32)])

    def __reduce__(self) -> tuple[type[EncodedRows], tuple[Path, int, int]]:
        return EncodedRows, (self.path, self.pad_id, self.window)  # worker processes map the file themselves

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(self) -> Iterator[str]:
        """Iterate over the document ids."""
        for i in range(self._file.num_record_batches):
            yield from self._file.get_batch(i).column("id").to_pylist()

    def tokens(self) -> Iterator[np.ndarray]:
        """Iterate over the token ids of the documents."""
        for lists in self._tokens:
            yield from (lists[i] for i in range(len(lists.sizes)))

    def token_counts(self, vocab_size: int, lead: int = 0) -> csr_array:
        """Token counts, or values of features, (documents, vocab_size); see `bags`."""
        starts, tokens = _joined(self._tokens)
        return bags(tokens, starts, None if self._values is None else _joined(self._values)[1], vocab_size, lead)

    def fingerprint(self) -> str:
        """Digest of all tokens, their values and the windows."""
        digest = blake2b(str(self.window).encode(), digest_size=16)
        for lists in (*self._tokens, *(self._values or ())):
            digest.update(lists.sizes.astype(np.int64).data)
            digest.update(np.ascontiguousarray(lists.values[lists.offsets[0] : lists.offsets[-1]]).data)
        return digest.hexdigest()

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
        kept = torch.tensor([max(row, -1) for row in rows])
        return Batch(ids, mask, Targets(indptr, indices), kept, values, self.window)


def pad(tokens: list[np.ndarray], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad token ids to a tensor (batch, length), and return it with the mask of real tokens."""
    lengths = np.array([len(t) for t in tokens])
    ids = np.full((len(tokens), lengths.max()), pad_id, dtype=np.int64)
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    ids[mask] = np.concatenate(tokens)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def pad_values(values: list[np.ndarray], mask: Tensor) -> Tensor:
    """Pad feature values with 0 to a tensor (batch, length)."""
    padded = torch.zeros(mask.shape)
    padded[mask] = torch.from_numpy(np.concatenate(values).astype(np.float32))
    return padded


def _joined(columns: list[Lists]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the lists of a column: their starts, and their values."""
    counts = np.concatenate([lists.sizes for lists in columns] or [np.zeros(0, dtype=np.int64)])
    values = [lists.values[lists.offsets[0] : lists.offsets[-1]] for lists in columns]
    return np.concatenate([[0], counts.cumsum(dtype=np.int64)]), np.concatenate(values or [np.zeros(0, dtype=np.int32)])
