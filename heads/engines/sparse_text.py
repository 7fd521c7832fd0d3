"""Writer of the sparse text format of the Extreme Classification Repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

AT_ONCE = 4096  # documents per chunk, whose text is in memory


def write_documents(file: Path, words: csr_array, labels: csr_array) -> None:
    """Write a header with the sizes, then a line `label,label word:weight word:weight` per document."""
    with file.open("wb") as sink:
        sink.write(f"{words.shape[0]} {words.shape[1]} {labels.shape[1]}\n".encode())
        for start in range(0, words.shape[0], AT_ONCE):
            sink.write(lines(words[start : start + AT_ONCE], labels[start : start + AT_ONCE]))


def lines(words: csr_array, labels: csr_array) -> memoryview:
    pairs = pc.binary_join_element_wise(texts(words.indices), texts(words.data), ":")
    both = pc.binary_join_element_wise(
        joined(texts(labels.indices), labels.indptr, ","), joined(pairs, words.indptr, " "), " "
    )
    # No trailing space if a document has no words: it would be read as one. Without labels the space comes first.
    ended = pc.binary_join_element_wise(pc.utf8_rtrim(both, " "), "\n", "")
    return memoryview(joined(ended, np.array([0, len(ended)]), "")[0].as_buffer())


def texts(numbers: np.ndarray) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def joined(items: pa.Array, starts: np.ndarray, between: str) -> pa.Array:
    """Join the items between consecutive starts."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), items), between)
