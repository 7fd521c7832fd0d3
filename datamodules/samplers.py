"""Batches of like length that can start in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

POOL = 64  # batches that are sorted by length together: larger pads less and shuffles less


class LengthBatches(Sampler[list[int]]):
    """Lists of row numbers; each row (each of `chosen`, if given) comes once in an epoch, over all ranks together.

    The order is a function of (seed, epoch) alone. Rows are shuffled, sorted by length within pools, cut into
    groups of `batch_size * world` that every rank takes its share of, and the groups are shuffled. Where rows
    do not suffice for all ranks, a rank repeats one as `~row`: to be computed, not to be counted.
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
        # numbers past the end are of copies
        self.lengths = lengths if chosen is None else lengths[chosen % max(len(lengths), 1)]
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world, self.epoch, self.skip = rank, world, epoch, skip

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._cuts()) - 1

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0  # batches seen before a resume, in the first epoch only
        random = np.random.default_rng((self.seed, self.epoch))
        rows, cuts = self._rows(random), self._cuts()
        order = random.permutation(len(cuts) - 1) if self.shuffle else np.arange(len(cuts) - 1)
        for group in order[skip:]:
            start, stop = cuts[group : group + 2]
            mine = rows[start + self.rank : stop : self.world].tolist()
            yield mine or [~int(rows[start])]

    def _rows(self, random: np.random.Generator) -> np.ndarray:
        """Row numbers in the order in which groups are cut from them; sorted in place, for there may be millions."""
        size = len(self.lengths)
        places = random.permutation(size) if self.shuffle else np.arange(size)
        pool = self.batch_size * self.world * POOL if self.shuffle else max(size, 1)
        for start in range(0, size, pool):
            part = places[start : start + pool]
            part[:] = part[np.argsort(-self.lengths[part], kind="stable")]
        return places if self.chosen is None else self.chosen[places]

    def _cuts(self) -> np.ndarray:
        """Where groups begin and end; a last one that is too small for all ranks joins the one before."""
        size, step = len(self.lengths), self.batch_size * self.world
        cuts = np.append(np.arange(0, size, step), size)
        return np.delete(cuts, -2) if len(cuts) > 2 and cuts[-1] - cuts[-2] < self.world else cuts
