"""Batch sampler that groups documents of similar length and can resume within an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

POOL = 64  # batches sorted by length together; larger pools mean less padding but less random batches


class LengthBatches(Sampler[list[int]]):
    """Sampler of batches of row numbers. Each row comes once per epoch, over all ranks together.

    Rows are shuffled, sorted by length within pools and divided into groups of `batch_size * world`, which are shuffled
    and shared by all ranks. The order depends on (seed, epoch) only. A rank without a row of its own repeats one as
    `~row`, which is computed, but not counted.

    Args:
        lengths: number of tokens of each row.
        batch_size: rows in a batch, per rank.
        chosen: rows to sample from; all by default. Numbers past the end are augmented copies.
        shuffle: whether to shuffle; otherwise rows come by decreasing length.
        seed: random seed.
        rank: rank of this process.
        world: number of processes.
        epoch: current epoch.
        skip: number of batches of the first epoch that were seen before a resume.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        chosen: np.ndarray | None = None,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        epoch: int = 0,
        skip: int = 0,
    ) -> None:
        self.chosen = chosen
        self.lengths = lengths if chosen is None else lengths[chosen % max(len(lengths), 1)]
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world, self.epoch, self.skip = rank, world, epoch, skip

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._bounds()) - 1

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0
        random = np.random.default_rng((self.seed, self.epoch))
        rows, bounds = self._rows(random), self._bounds()
        order = random.permutation(len(bounds) - 1) if self.shuffle else np.arange(len(bounds) - 1)
        for group in order[skip:]:
            start, stop = bounds[group : group + 2]
            mine = rows[start + self.rank : stop : self.world].tolist()
            yield mine or [~int(rows[start])]

    def _rows(self, random: np.random.Generator) -> np.ndarray:
        """Order the rows before they are divided into groups; in place, since there may be millions."""
        size = len(self.lengths)
        places = random.permutation(size) if self.shuffle else np.arange(size)
        pool = self.batch_size * self.world * POOL if self.shuffle else max(size, 1)
        for start in range(0, size, pool):
            part = places[start : start + pool]
            part[:] = part[np.argsort(-self.lengths[part], kind="stable")]
        return places if self.chosen is None else self.chosen[places]

    def _bounds(self) -> np.ndarray:
        """Boundaries of the groups; a last group that is too small for all ranks joins the one before."""
        size, step = len(self.lengths), self.batch_size * self.world
        bounds = np.append(np.arange(0, size, step), size)
        return np.delete(bounds, -2) if len(bounds) > 2 and bounds[-1] - bounds[-2] < self.world else bounds
