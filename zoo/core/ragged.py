"""Ragged lists as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


class Lists(NamedTuple):
    """Ragged lists in two arrays: item i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: np.ndarray
    values: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @classmethod
    def of_column(cls, column: pa.ListArray | pa.ChunkedArray) -> Lists:
        """Read a column of an Arrow table; a single chunk is not copied, so a memory-mapped file stays mapped."""
        if hasattr(column, "combine_chunks"):
            column = column.combine_chunks()
        return cls(column.offsets.to_numpy(), column.values.to_numpy())

    @classmethod
    def of_sizes(cls, sizes: Sequence[int] | np.ndarray, values: np.ndarray) -> Lists:
        """Split values into consecutive lists of these sizes."""
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return cls(offsets, values)

    @property
    def sizes(self) -> np.ndarray:
        sizes: np.ndarray = np.diff(self.offsets)
        return sizes

    @property
    def rows(self) -> np.ndarray:
        """Index of the list of each value."""
        return np.asarray(np.arange(len(self.offsets) - 1).repeat(self.sizes))

    @property
    def places(self) -> np.ndarray:
        """Position of each value in its list, from 0."""
        return np.asarray(np.arange(len(self.values)) - self.offsets[:-1].repeat(self.sizes))

    def only(self, kept: np.ndarray) -> Lists:
        """Keep the lists where the mask is True."""
        return Lists.of_sizes(self.sizes[kept], self.values[kept.repeat(self.sizes)])

    def chosen(self, kept: np.ndarray) -> Lists:
        """Keep the values where the mask is True."""
        before = np.concatenate([[0], kept.cumsum()])
        return Lists(before[self.offsets], self.values[kept])

    def sets(self) -> Lists:
        """Sort each list and remove duplicates."""
        rows, values = distinct_pairs(self.rows, self.values)
        sizes = np.bincount(rows, minlength=len(self.offsets) - 1)
        return Lists.of_sizes(sizes, values.astype(self.values.dtype))

    def check(self, size: int, width: int) -> None:
        """Refuse what is not `size` lists of ascending indices below `width`: native code does not check indices."""
        for array in self:
            if array.ndim != 1 or array.dtype not in (np.int32, np.int64):
                raise ValueError(f"expected a list of integers, not {array.dtype} in {array.ndim} dimensions")
        if len(self.offsets) != size + 1 or self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise ValueError(f"the offsets of {size:,} lists do not fit {len(self.values):,} values")
        if np.any(self.offsets[1:] < self.offsets[:-1]):
            raise ValueError("the offsets are not ascending")
        if len(self.values) and not 0 <= self.values.min() <= self.values.max() < width:
            raise ValueError(f"an index is not below {width:,}")
        ascending = self.values[1:] > self.values[:-1]
        starts = self.offsets[1:-1]
        ascending[starts[(starts > 0) & (starts < len(self.values))] - 1] = True
        if not ascending.all():
            raise ValueError("the indices of a list are not ascending")

    def column(self) -> pa.ListArray:
        import pyarrow as pa

        return pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), pa.array(self.values))


def distinct_pairs(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort pairs and remove duplicates; values are below 2**32. Much faster than `np.unique`."""
    keys = rows << 32 | values
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) != 0]
    return keys >> 32, keys & (2**32 - 1)
