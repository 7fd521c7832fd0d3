"""The order of batches: complete, the same on all ranks, and resumable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.samplers import LengthBatches

SIZES, BATCHES, WORLDS, SEEDS = st.integers(0, 300), st.integers(1, 17), st.integers(1, 5), st.integers(0, 5)


def random_lengths(size, seed=0):
    return np.random.default_rng(seed).integers(1, 40, size)


def all_ranks(lengths, batch_size, world, **kwargs):
    samplers = [LengthBatches(lengths, batch_size, rank=rank, world=world, **kwargs) for rank in range(world)]
    batches = [list(sampler) for sampler in samplers]
    assert [len(s) for s in samplers] == [len(b) for b in batches]
    return batches


@given(size=SIZES, batch_size=BATCHES, world=WORLDS, seed=SEEDS, epoch=st.integers(0, 3), shuffle=st.booleans())
@settings(deadline=None)
def test_each_row_comes_once_over_all_ranks(size, batch_size, world, seed, epoch, shuffle):
    ranks = all_ranks(random_lengths(size), batch_size, world, seed=seed, epoch=epoch, shuffle=shuffle)
    assert len({len(batches) for batches in ranks}) == 1
    rows = [row for batches in ranks for batch in batches for row in batch]
    assert sorted(row for row in rows if row >= 0) == list(range(size))
    repeats = [~row for row in rows if row < 0]
    assert len(repeats) == (world - size if 0 < size < world else 0)
    assert all(0 <= row < size for row in repeats)
    assert all(1 <= len(batch) <= batch_size + 1 for batches in ranks for batch in batches)
    for step in zip(*ranks, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1


@given(size=SIZES, batch_size=BATCHES, world=WORLDS, seed=SEEDS)
@settings(deadline=None, max_examples=30)
def test_order_is_a_function_of_seed_and_epoch(size, batch_size, world, seed):
    lengths = random_lengths(size)
    one, same = (all_ranks(lengths, batch_size, world, seed=seed, epoch=2, shuffle=True) for _ in range(2))
    assert one == same
    sampler = LengthBatches(lengths, batch_size, seed=seed, shuffle=True, world=world)
    sampler.set_epoch(2)
    assert list(sampler) == list(sampler) == one[0]


@pytest.mark.parametrize("changed", [{"epoch": 1}, {"seed": 1}])
def test_epochs_and_seeds_have_different_batches(changed):
    lengths = random_lengths(200)
    one = list(LengthBatches(lengths, 8, shuffle=True))
    other = list(LengthBatches(lengths, 8, shuffle=True, **changed))
    assert one != other
    assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in other}


@given(size=SIZES, batch_size=BATCHES, world=WORLDS, seed=SEEDS, skip=st.integers(0, 40))
@settings(deadline=None, max_examples=50)
def test_skip_resumes_within_the_first_epoch(size, batch_size, world, seed, skip):
    def make(epoch, skip=0):
        return LengthBatches(
            random_lengths(size), batch_size, shuffle=True, seed=seed, world=world, epoch=epoch, skip=skip
        )

    resumed = make(epoch=3, skip=skip)
    assert list(resumed) == list(make(epoch=3))[skip:]
    resumed.set_epoch(4)
    assert list(resumed) == list(make(epoch=4))


@given(groups=st.integers(1, 12), rest=st.integers(4, 7), whole=st.booleans(), seed=SEEDS)
@settings(deadline=None, max_examples=30)
def test_steps_hold_the_same_rows_for_every_world_size(groups, rest, whole, seed):
    size = 8 * groups + (0 if whole else rest)  # the last step has rows for all of four ranks
    steps = {}
    for world in (1, 2, 4):
        ranks = all_ranks(random_lengths(size), 8 // world, world, seed=seed, shuffle=True)
        steps[world] = [sorted(row for batch in step for row in batch) for step in zip(*ranks, strict=True)]
    assert steps[1] == steps[2] == steps[4]


@pytest.mark.parametrize(("spread", "longest"), [(0.5, 10**6), (1.0, 500)])  # the second as after truncation
def test_little_padding_for_documents_of_different_lengths(spread, longest):
    lengths = np.random.default_rng(0).lognormal(5, spread, 5000).clip(1, longest).astype(np.int64)
    batches = list(LengthBatches(lengths, 32, shuffle=True))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert 1 - lengths.sum() / padded < 0.1


def test_unshuffled_order_is_by_falling_length():
    lengths = random_lengths(103)
    sampler = LengthBatches(lengths, 8)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == first
    rows = [row for batch in first for row in batch]
    assert sorted(rows) == list(range(103))
    assert rows == sorted(range(103), key=lambda row: (-lengths[row], row))


def test_a_last_group_too_small_for_all_ranks_joins_the_previous_one():
    ranks = all_ranks(random_lengths(9), 2, world=2)  # 4 + 4 + 1
    assert [[len(batch) for batch in batches] for batches in ranks] == [[2, 3], [2, 2]]
