"""Pretrained word vectors in the text formats of GloVe and word2vec."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.prepare.limits import DEFAULT_LIMITS, limited
from zoo.core.console import open_with_bar
from zoo.core.errors import UserError


@dataclass(frozen=True)
class WordVectors:
    """Vectors of a vocabulary; `coverage` is the share of words that were found in the file."""

    matrix: Tensor  # (vocab_size, width)
    coverage: float


def read_vectors(path: Path, words: Mapping[str, int], size: int, pad_id: int, seed: int = 0) -> WordVectors:
    """Read vectors of `words` from a `.txt` or `.txt.gz` file; missing ones are uniform(-1, 1), padding is zero."""
    wanted = {word.encode(): row for word, row in words.items()}
    try:
        with open_with_bar(path) as file:
            stream = (
                limited(gzip.GzipFile(fileobj=file), file.tell, path, DEFAULT_LIMITS) if path.suffix == ".gz" else file
            )
            lines = enumerate(iter(partial(stream.readline, LONGEST_LINE), b""), 1)
            first = next(lines, (1, b""))
            width, has_header = _width(path, first[1])
            matrix = np.random.default_rng(seed).uniform(-1, 1, (size, width)).astype(np.float32)
            found = np.zeros(size, dtype=bool)
            for number, line in lines if has_header else chain([first], lines):
                row = wanted.get(line.split(None, 1)[0] if line.strip() else b"")
                if row is not None and (values := _numbers(path, number, line, width)) is not None:
                    matrix[row] = values
                    found[row] = True
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    matrix[pad_id] = 0
    return WordVectors(torch.from_numpy(matrix), float(found.sum()) / max(len(words), 1))


LONGEST_LINE = 10**6  # bytes; the rest of a longer line, which no vector has, is read as another one


def _width(path: Path, first_line: bytes) -> tuple[int, bool]:
    """Return the number of dimensions, and whether the line is a word2vec header."""
    fields = first_line.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[1]), True
    if len(fields) < 3 or b"\0" in first_line:  # as in UTF-16
        raise UserError(f"{path}: not a UTF-8 text file of word vectors: expected lines with a word and its numbers")
    return len(fields) - 1, False


def _numbers(path: Path, number: int, line: bytes, width: int) -> np.ndarray | None:
    """Parse a vector; None if the word contains spaces, so that it only looked like a word of the vocabulary."""
    fields = line.split()
    if any(not _is_number(field) for field in fields[1:-width]):
        return None
    try:
        values = np.array(fields[1:], dtype=np.float32)
    except ValueError:
        values = np.empty(0, dtype=np.float32)
    if len(values) != width or not np.isfinite(values).all():
        raise UserError(f"{path}, line {number}: expected a word and {width} numbers")
    return values


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
