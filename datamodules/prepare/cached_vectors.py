"""Word vectors of a prepared corpus, cached in its folder."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from datamodules.prepare.preparation import Prepared, cache_errors
from datamodules.prepare.vectors import WordVectors, read_vectors
from zoo.core.console import warn
from zoo.core.errors import UserError
from zoo.core.files import atomic_write, remove


def cached_vectors(path: Path, prepared: Prepared, seed: int) -> WordVectors:
    """Load the vectors of the vocabulary from the cache, or read them from the file at `path`."""
    version, vocabulary = version_of(path), prepared.vocabulary
    cached = prepared.folder / f"vectors-{path.name}-{version}.npz"
    with cache_errors(prepared.folder.parent), FileLock(cached.with_suffix(".lock")):
        if os.path.lexists(cached):
            if vectors := load(cached, vocabulary.size):
                return vectors
            warn(f"the cache {cached} is damaged: word vectors are read again")
            remove(cached)
        vectors = read_vectors(path, vocabulary.words(), vocabulary.size, vocabulary.pad_id, seed)
        if version_of(path) != version:
            raise UserError(f"{path} changed while it was read: run again once it is complete")
        with atomic_write(cached) as aside:
            np.savez(aside, matrix=vectors.matrix.numpy(), coverage=vectors.coverage)
    return vectors


def version_of(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def load(cached: Path, size: int) -> WordVectors | None:
    """Load cached vectors; None if they are damaged, which the checksums of the .npz show."""
    try:
        with np.load(cached) as stored:
            matrix, coverage = stored["matrix"], float(stored["coverage"])
    except (OSError, ValueError, LookupError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
        return None
    if matrix.dtype != np.float32 or matrix.ndim != 2 or len(matrix) != size:
        return None
    return WordVectors(torch.from_numpy(matrix), coverage)
