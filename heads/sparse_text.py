"""Documents as lines of text, in the format of the Extreme Classification Repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

AT_ONCE = 4096  # documents: Python takes a step for so many, and the text of so many is in memory


def write_documents(file: Path, words: csr_array, labels: csr_array) -> None:
    """A line `label,label word:weight word:weight` for each document, after one with the sizes."""
    with file.open("wb") as sink:
        sink.write(f"{words.shape[0]} {words.shape[1]} {labels.shape[1]}\n".encode())
        for start in range(0, words.shape[0], AT_ONCE):
            sink.write(lines(words[start : start + AT_ONCE], labels[start : start + AT_ONCE]))


def lines(words: csr_array, labels: csr_array) -> memoryview:
    pairs = pc.binary_join_element_wise(texts(words.indices), texts(words.data), ":")
    both = pc.binary_join_element_wise(
        joined(texts(labels.indices), labels.indptr, ","), joined(pairs, words.indptr, " "), " "
    )
    # A document without words has no blank at its end, which would be a word; one without labels begins with it.
    ended = pc.binary_join_element_wise(pc.utf8_rtrim(both, " "), "\n", "")
    return memoryview(joined(ended, np.array([0, len(ended)]), "")[0].as_buffer())


def texts(numbers: np.ndarray) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def joined(items: pa.Array, starts: np.ndarray, between: str) -> pa.Array:
    """The items from each start to before the next as one text."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), items), between)
