"""Pretrained word vectors in the text formats of GloVe and word2vec."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from datamodules.errors import UserError


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word of a vocabulary; `coverage` is the share of words that the file has."""

    matrix: Tensor  # (vocab_size, width)
    coverage: float


def read_vectors(path: Path, words: Mapping[str, int], size: int, pad_id: int, seed: int = 0) -> WordVectors:
    """Vectors of `words` from a `.txt` or `.txt.gz` file; the others are uniform(-1, 1), padding is zero."""
    wanted = {word.encode(): row for word, row in words.items()}
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as raw:
        lines = cast(IO[bytes], raw)
        width = _width(path, lines)
        matrix = np.random.default_rng(seed).uniform(-1, 1, (size, width)).astype(np.float32)
        found = np.zeros(size, dtype=bool)
        for number, line in enumerate(lines, 2):
            row = wanted.get(line[: line.find(b" ")])
            if row is not None:
                matrix[row] = _numbers(path, number, line, width)
                found[row] = True
    matrix[pad_id] = 0
    return WordVectors(torch.from_numpy(matrix), float(found.sum()) / max(len(words), 1))


def _width(path: Path, lines: IO[bytes]) -> int:
    """Number of dimensions; leaves a word2vec header consumed, and a GloVe first line to be read again."""
    first = lines.readline().split()
    if len(first) == 2 and all(field.isdigit() for field in first):
        return int(first[1])
    if len(first) < 3:
        raise UserError(f"{path}: not a text file of word vectors: a line is a word and its numbers")
    lines.seek(0)
    return len(first) - 1


def _numbers(path: Path, number: int, line: bytes, width: int) -> np.ndarray:
    try:
        values = np.array(line.split()[1:], dtype=np.float32)
    except ValueError:
        values = np.empty(0, dtype=np.float32)
    if len(values) != width or not np.isfinite(values).all():
        raise UserError(f"{path}, line {number}: expected a word and {width} numbers")
    return values
