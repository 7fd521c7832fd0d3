"""Encoded documents written one at a time."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from datamodules.prepare.rows import CHUNK
from datamodules.prepare.rows import RowWriter as BatchWriter


class EncodedRow(NamedTuple):
    id: str
    tokens: list[int]
    labels: list[int]
    values: list[float] | None = None  # of the tokens, if they are features


class RowWriter(BatchWriter):
    def __init__(self, path, values=False):
        super().__init__(path, values)
        self._rows: list[EncodedRow] = []

    def __exit__(self, *error):
        self._gather()
        super().__exit__(*error)

    def write(self, row: EncodedRow) -> None:
        self._rows.append(row)
        if len(self._rows) == CHUNK:
            self._gather()

    def _gather(self) -> None:
        if self._rows:
            columns = list(zip(*self._rows, strict=True))[: len(self.schema)]
            self._rows = []
            self.write_batch(pa.record_batch(columns, schema=self.schema))
