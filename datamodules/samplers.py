"""Batches of like length that can start in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

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
        self.chosen = np.arange(len(lengths)) if chosen is None else chosen
        self.lengths = lengths[self.chosen % max(len(lengths), 1)]  # numbers past the end are of copies
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world, self.epoch, self.skip = rank, world, epoch, skip

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._cuts()) - 1

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0  # batches seen before a resume, in the first epoch only
        for group in self._groups()[skip:]:
            mine = self.chosen[group[self.rank :: self.world]].tolist()
            yield mine or [~int(self.chosen[group[0]])]

    def _groups(self) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, self.epoch))
        rows = random.permutation(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        step = self.batch_size * self.world
        pool = step * POOL if self.shuffle else max(len(rows), 1)
        pools = [rows[i : i + pool] for i in range(0, len(rows), pool)]
        rows = np.concatenate([p[np.argsort(-self.lengths[p], kind="stable")] for p in pools] or [rows])
        cuts = self._cuts()
        groups = [rows[a:b] for a, b in pairwise(cuts)]
        return [groups[i] for i in random.permutation(len(groups))] if self.shuffle else groups

    def _cuts(self) -> list[int]:
        """Where groups begin and end; a last one that is too small for all ranks joins the one before."""
        size, step = len(self.lengths), self.batch_size * self.world
        cuts = [*range(0, size, step), size]
        if len(cuts) > 2 and cuts[-1] - cuts[-2] < self.world:
            del cuts[-2]
        return cuts
