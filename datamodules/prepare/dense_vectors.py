"""Document vectors of a split, computed once for an encoder and kept in the cache as one memory-mapped file.

The key is the content: all tokens of the split, and all weights and settings of the encoder. Blocks of documents are
written one by one as they are computed, by any number of processes; a run that was killed continues with those that are
missing. A block is always divided into the same batches, so the vectors do not depend on interruptions.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from datamodules.batch import Batch
from datamodules.prepare.cache import find_defect, write_manifest
from datamodules.prepare.preparation import cache_errors
from datamodules.prepare.rows import EncodedRows
from zoo.core.console import warn
from zoo.core.errors import first_line
from zoo.core.files import atomic_write, folder_written_whole, remove

VERSION = 1  # of the cache format and of the order of computation; increase it with every change
BLOCK = 512  # documents
FOLDER, FILE = "vectors", "vectors.npy"
Encode = Callable[[Batch], Tensor]  # document vectors (batch, dim)


class VectorCache:
    """Document vectors of one split by one encoder.

    Args:
        cache: folder of prepared corpora.
        rows: encoded documents.
        encoder: digest of the encoder.
        dim: width of the vectors.
        encode: the encoder; needed to compute vectors that are missing.
        batch_size: number of documents that are encoded together; not part of the key.
    """

    def __init__(
        self, cache: Path, rows: EncodedRows, encoder: str, dim: int, encode: Encode | None = None, batch_size: int = 64
    ) -> None:
        parts = f"{VERSION} {encoder} {dim} {rows.fingerprint()}"
        self.folder = cache / FOLDER / blake2b(parts.encode(), digest_size=12).hexdigest()
        self.blocks = self.folder.with_name(f"{self.folder.name}.blocks")
        self.rows, self.dim, self.encode, self.batch_size = rows, dim, encode, batch_size

    @property
    def num_blocks(self) -> int:
        return -(-len(self.rows) // BLOCK)

    def load(self) -> Tensor | None:
        """Map the vectors (documents, dim) into memory; None if they are not there, or damaged."""
        vectors, defect = self._read()
        if defect:
            warn(f"the cache {self.folder} is damaged ({defect}): document vectors are computed again")
        return vectors

    def _read(self) -> tuple[Tensor | None, str | None]:
        """The vectors, or what is wrong with them; "" if there are none."""
        if (defect := find_defect(self.folder, [FILE])) is not None:
            return None, defect
        try:
            vectors = np.load(self.folder / FILE, mmap_mode="c")  # writes stay in memory
        except (OSError, ValueError) as error:
            return None, first_line(error)
        if vectors.dtype != np.float32 or vectors.shape != (len(self.rows), self.dim):
            return None, f"{FILE} has vectors of {vectors.dtype} and shape {vectors.shape}"
        return torch.from_numpy(vectors), None

    def missing(self) -> list[int]:
        """Numbers of the blocks that are not there, or damaged."""
        sizes = [min(BLOCK, len(self.rows) - number * BLOCK) for number in range(self.num_blocks)]
        return [i for i, size in enumerate(sizes) if load_block(self._path(i), (size, self.dim)) is None]

    def compute(self, steps: Callable[[range], Iterable[int]] = iter, rank: int = 0, world: int = 1) -> None:
        """Write the missing blocks among every `world`-th one, from `rank` on.

        `steps` may show progress; every process takes the same number of steps.
        """
        with cache_errors(self.folder.parent):
            self.blocks.mkdir(parents=True, exist_ok=True)
            for step in steps(range(-(-self.num_blocks // world))):
                if (number := step * world + rank) < self.num_blocks:
                    self._block(number)

    def finish(self) -> Tensor:
        """Join the blocks, computing those that are still missing; a lock lets only one process write."""
        with cache_errors(self.folder.parent):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder.with_name(f"{self.folder.name}.lock")):
                if self._read()[0] is None:
                    self.blocks.mkdir(exist_ok=True)
                    with folder_written_whole(self.folder) as aside:
                        shape = (len(self.rows), self.dim)
                        table = np.lib.format.open_memmap(aside / FILE, "w+", np.float32, shape)
                        for number in range(self.num_blocks):
                            table[number * BLOCK : (number + 1) * BLOCK] = self._block(number)
                        table.flush()
                        write_manifest(aside, self.folder.name, [FILE])
                remove(self.blocks)
        vectors = self.load()
        assert vectors is not None
        return vectors

    def _path(self, number: int) -> Path:
        return self.blocks / f"{number}.npz"

    def _block(self, number: int) -> np.ndarray:
        """Load a block, or compute and write it."""
        path = self._path(number)
        documents = np.arange(len(self.rows))[number * BLOCK : (number + 1) * BLOCK]
        if (known := load_block(path, (len(documents), self.dim))) is not None:
            return known
        assert self.encode is not None
        vectors = np.zeros((len(documents), self.dim), np.float32)
        order = np.argsort(-self.rows.lengths[documents], kind="stable")
        for start in range(0, len(order), self.batch_size):
            some = order[start : start + self.batch_size]
            vectors[some] = self.encode(self.rows[documents[some].tolist()]).float().cpu().numpy()
        self.blocks.mkdir(exist_ok=True)  # another run may have finished, and removed it
        with atomic_write(path) as aside:
            np.savez(aside, vectors=vectors)
        return vectors


def load_block(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Load a block; None if it is not there, or damaged, which the checksums of the .npz show."""
    try:
        with np.load(path) as stored:
            vectors: np.ndarray = stored["vectors"]
    except (OSError, ValueError, LookupError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
        return None
    return vectors if vectors.dtype == np.float32 and vectors.shape == shape else None
