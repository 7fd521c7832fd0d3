"""Augmented copies: what changes in them, and that their number alone determines it."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from datamodules.augment import (
    Augmentation,
    RowsWithCopies,
    drop_entries,
    keep_mask,
    swap_values,
    swapped_order,
    uniform,
)
from datamodules.batch import LabelSpace, Targets
from datamodules.prepare.rows import EncodedRows
from tests.support.encoded import EncodedRow, RowWriter
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = LabelSpace(list("abcdefghij"), [9, 8, 7, 6, 5, 4, 3, 2, 1, 1], num_documents=12, vocab_size=60)
TARGETS = Targets.from_lists([[0], [0, 3], [1, 9], [2], [0, 1], [4], [5, 0], [6], [7], [8], [0], [1]])


def matrix(rows=200, columns=300, density=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return csr_array(random_array((rows, columns), density=density, rng=rng, format="csr"))


def rows_of(words):
    return [(words.indices[a:b], words.data[a:b]) for a, b in zip(words.indptr[:-1], words.indptr[1:], strict=True)]


def test_draws_are_uniform_and_independent():
    numbers = np.arange(1000)
    draws = uniform(3, 1, numbers[:, None], numbers[None, :])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / (12 * draws.size) ** 0.5
    assert len(np.unique(draws)) == draws.size
    share = np.histogram(draws, 20, (0, 1))[0] / draws.size
    assert np.abs(share - 0.05).max() < 5 * (0.05 * 0.95 / draws.size) ** 0.5
    other_seed = uniform(4, 1, *np.ix_(numbers, numbers))
    for one, other in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1]), (draws, other_seed)):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5e-3


def test_keep_0_leaves_one_entry():
    words = matrix()
    words = csr_array(words.multiply(np.arange(200)[:, None] != 7))
    words.eliminate_zeros()
    left = drop_entries(words, 0.0, np.arange(200))
    sizes, before = np.diff(left.indptr), np.diff(words.indptr)
    assert (sizes == (before > 0)).all()
    assert sizes[7] == 0
    for (index, value), (was, values) in zip(rows_of(left), rows_of(words), strict=True):
        assert set(zip(index, value, strict=True)) <= set(zip(was, values, strict=True))


@pytest.mark.parametrize("keep", [0.2, 0.8])
def test_number_of_kept_entries_is_binomial(keep):
    words = matrix(rows=2000)
    left = drop_entries(words, keep, np.arange(2000) + 2000, seed=5)
    deviation = (words.nnz * keep * (1 - keep)) ** 0.5
    assert abs(left.nnz - keep * words.nnz) < 4 * deviation
    by_row = (np.diff(left.indptr) - keep * np.diff(words.indptr)) / (np.diff(words.indptr) * keep * (1 - keep)) ** 0.5
    assert abs(by_row.std() - 1) < 0.1  # each row has draws of its own


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_swaps_preserve_support_and_values(share):
    words = matrix()
    moved = swap_values(words, share, np.arange(200), seed=1)
    assert (moved.indices == words.indices).all()
    assert (moved.indptr == words.indptr).all()
    for (_, after), (_, before) in zip(rows_of(moved), rows_of(words), strict=True):
        assert (np.sort(after) == np.sort(before)).all()
        changed = (after != before).sum()
        assert 0 <= changed <= 2 * max(1, int(share * len(before) / 2))
        assert share > 0.1 or changed >= 2  # at least one pair
    assert np.allclose(moved.sum(1), words.sum(1))
    assert np.allclose((moved**2).sum(1), (words**2).sum(1))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0.01, 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_changes_depend_on_the_copys_number_only(sizes, share, seed):
    sizes, numbers = np.array(sizes), np.arange(len(sizes)) * 7 + 3
    starts = sizes.cumsum() - sizes
    order, alive = swapped_order(sizes, share, numbers, seed), keep_mask(sizes, share, numbers, seed)
    for i, size in enumerate(sizes):
        part = slice(starts[i], starts[i] + size)
        assert (order[part] - starts[i] == swapped_order(sizes[i : i + 1], share, numbers[i : i + 1], seed)).all()
        assert (alive[part] == keep_mask(sizes[i : i + 1], share, numbers[i : i + 1], seed)).all()
        assert sorted(order[part]) == list(range(starts[i], starts[i] + size))


def test_documents_with_a_tail_label_are_copied():
    made = Augmentation("tail", copies=4, fraction=0.3).with_copies(np.arange(12), TARGETS, SPACE)
    tail = {1, 2, 5, 6, 7, 8, 9}
    assert len(made) == 12 + 4 * len(tail)
    for row in range(12):
        assert (made % 12 == row).sum() == (5 if row in tail else 1)
    chosen = Augmentation("tail", copies=4, fraction=0.3).with_copies(np.array(sorted(tail)), TARGETS, SPACE)
    assert len(chosen) == 5 * len(tail)
    assert len(set(chosen.tolist())) == len(chosen)


@pytest.mark.parametrize("options", [{"copies": 0}, {"fraction": 1.0}])
def test_no_copies_without_tail_labels(options):
    made = Augmentation("tail", **options).with_copies(np.arange(12), TARGETS, SPACE)
    assert (made == np.arange(12)).all()


def test_stages_that_draw_copies_are_rejected():
    with raises(UserError, "'tail'", "TailAugment"):
        Augmentation("tail").with_copies(np.array([0, 12]), TARGETS, SPACE)


def test_bags_of_copies_keep_labels_and_norms():
    words = matrix(rows=12)
    augmentation = Augmentation("tail", copies=4, fraction=0.3)
    rows = np.array([9, 1, 2, 5])  # of a part of the corpus, in any order
    numbers = augmentation.with_copies(rows, TARGETS, SPACE)[4:]
    mine = TARGETS.take(torch.from_numpy(rows))
    more, labels = augmentation.append_copies(words[rows], mine, rows, numbers, 12)
    assert more.shape[0] == len(labels) == 5 * 4
    assert (more[:4] != words[rows]).nnz == 0
    expected = TARGETS.take(torch.from_numpy(np.concatenate([rows, numbers % 12])))
    assert torch.equal(labels.indptr, expected.indptr)
    assert torch.equal(labels.indices, expected.indices)
    before = np.sqrt((words**2).sum(1))
    assert np.allclose(np.sqrt((more**2).sum(1)), before[np.concatenate([rows, numbers % 12])])
    for i, number in enumerate(numbers):
        assert set(more[[4 + i]].indices) <= set(words[[number % 12]].indices)
    assert len({tuple(index) for index, _ in rows_of(more)}) == 20  # no copy is like another


def make_rows(path, values=False):
    rng = np.random.default_rng(0)
    with RowWriter(path, values) as writer:
        for i in range(12):
            tokens = [2, *rng.choice(np.arange(5, 60), size=i + 1, replace=False).tolist(), 3]
            weights = rng.random(len(tokens)).tolist() if values else None
            labels = TARGETS.take(torch.tensor([i])).indices.tolist()
            writer.write(EncodedRow(f"d{i}", tokens, labels, weights))
    return EncodedRows(path, 0)


def unpacked(batch, i):
    return batch.ids[i][batch.mask[i]].tolist()


def test_special_tokens_and_originals_are_unchanged(tmp_path):
    rows = make_rows(tmp_path / "rows.arrow")
    copied = RowsWithCopies(rows, Augmentation("tail", keep=0.3, swap=0.5), [0, 2, 3])
    numbers = [*range(12), *range(12, 36), ~17]
    batch, plain = copied[numbers], rows[numbers]
    assert torch.equal(batch.rows, plain.rows)
    assert torch.equal(batch.targets.indices, plain.targets.indices)
    assert (batch.ids[~batch.mask] == 0).all()
    lengths = []
    for i in range(len(numbers)):
        after, before = unpacked(batch, i), unpacked(plain, i)
        if i < 12:
            assert after == before
            continue
        assert after[0] == 2
        assert after[-1] == 3
        assert 3 <= len(after) <= len(before)
        assert sorted(set(before) & set(after)) == sorted(after)
        lengths.append(len(after) / len(before))
    assert np.mean(lengths) < 0.8
    assert unpacked(batch, len(numbers) - 1) == unpacked(batch, 17)  # a repeat is the same copy


def test_swaps_permute_the_words(tmp_path):
    rows = make_rows(tmp_path / "rows.arrow")
    batch = RowsWithCopies(rows, Augmentation("tail", keep=None, swap=0.1), [0, 2, 3])[list(range(12, 24))]
    for i in range(12):
        before = unpacked(rows[[i]], 0)
        assert sorted(unpacked(batch, i)) == sorted(before)
        assert (unpacked(batch, i) == before) == (i == 0)  # a single word


def test_values_are_swapped_and_dropped_with_their_features(tmp_path):
    rows = make_rows(tmp_path / "rows.arrow", values=True)
    numbers = list(range(12, 24))
    moved = RowsWithCopies(rows, Augmentation("tail", keep=None, swap=0.5), [0])[numbers]
    plain = rows[numbers]
    assert torch.equal(moved.ids, plain.ids)
    assert torch.allclose(moved.values.sort(1).values, plain.values.sort(1).values)
    assert not torch.equal(moved.values, plain.values)
    fewer = RowsWithCopies(rows, Augmentation("tail", keep=0.5, swap=None), [0])[numbers]
    assert (fewer.values[~fewer.mask] == 0).all()
    for i in range(12):
        pairs = set(zip(unpacked(plain, i), plain.values[i][plain.mask[i]].tolist(), strict=True))
        assert set(zip(unpacked(fewer, i), fewer.values[i][fewer.mask[i]].tolist(), strict=True)) <= pairs


def test_copies_do_not_depend_on_batch_and_process(tmp_path):
    copied = RowsWithCopies(make_rows(tmp_path / "rows.arrow"), Augmentation("tail", seed=4), [0, 2, 3])
    there = pickle.loads(pickle.dumps(copied))  # as a worker process gets it
    numbers = [30, 3, 14, 25]
    together = copied[numbers]
    for i, number in enumerate(numbers):
        assert unpacked(there[[number]], 0) == unpacked(together, i)
    other = RowsWithCopies(copied.rows, Augmentation("tail", seed=5), [0, 2, 3])[numbers]
    assert not torch.equal(other.ids[:, :5], together.ids[:, :5])
