"""Augmented copies: what changes in them, what does not, and that nothing but their number decides it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from datamodules.augment import Augmentation, RowsWithCopies, drop, exchanged, kept, swap, uniform
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from datamodules.rows import EncodedRows
from tests.unit.encoded import EncodedRow, RowWriter

SPACE = LabelSpace(list("abcdefghij"), [9, 8, 7, 6, 5, 4, 3, 2, 1, 1], num_documents=12, vocab_size=60)
TARGETS = Targets.from_lists([[0], [0, 3], [1, 9], [2], [0, 1], [4], [5, 0], [6], [7], [8], [0], [1]])


def matrix(rows=200, columns=300, density=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return csr_array(random_array((rows, columns), density=density, rng=rng, format="csr"))


def rows_of(words):
    return [(words.indices[a:b], words.data[a:b]) for a, b in zip(words.indptr[:-1], words.indptr[1:], strict=True)]


# --- draws


def test_draws_are_uniform_and_differ_by_every_part():
    numbers = np.arange(1000)
    draws = uniform(3, 1, numbers[:, None], numbers[None, :])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / (12 * draws.size) ** 0.5
    assert len(np.unique(draws)) == draws.size
    share = np.histogram(draws, 20, (0, 1))[0] / draws.size
    assert np.abs(share - 0.05).max() < 5 * (0.05 * 0.95 / draws.size) ** 0.5
    neighbours = [
        (draws[1:], draws[:-1]),
        (draws[:, 1:], draws[:, :-1]),
        (draws, uniform(4, 1, *np.ix_(numbers, numbers))),
    ]
    for one, other in neighbours:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5e-3


# --- dropping (oracle 6)


def test_dropping_nothing_is_the_identity():
    words = matrix()
    same = drop(words, 1.0, np.arange(200))
    assert (same != words).nnz == 0
    assert same.nnz == words.nnz


def test_dropping_all_leaves_one_entry_and_an_empty_row_stays_empty():
    words = matrix()
    words = csr_array(words.multiply(np.arange(200)[:, None] != 7))
    words.eliminate_zeros()
    left = drop(words, 0.0, np.arange(200))
    sizes, before = np.diff(left.indptr), np.diff(words.indptr)
    assert (sizes == (before > 0)).all()
    assert sizes[7] == 0
    for (index, value), (was, values) in zip(rows_of(left), rows_of(words), strict=True):
        assert set(zip(index, value, strict=True)) <= set(zip(was, values, strict=True))


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8])
def test_as_many_entries_stay_as_the_binomial_says(keep):
    words = matrix(rows=2000)
    left = drop(words, keep, np.arange(2000) + 2000, seed=5)
    deviation = (words.nnz * keep * (1 - keep)) ** 0.5
    assert abs(left.nnz - keep * words.nnz) < 4 * deviation
    by_row = (np.diff(left.indptr) - keep * np.diff(words.indptr)) / (np.diff(words.indptr) * keep * (1 - keep)) ** 0.5
    assert abs(by_row.std() - 1) < 0.1  # each row has draws of its own


# --- exchanging (oracle 6)


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_exchanges_keep_support_sum_norm_and_values(share):
    words = matrix()
    moved = swap(words, share, np.arange(200), seed=1)
    assert (moved.indices == words.indices).all()
    assert (moved.indptr == words.indptr).all()
    for (_, after), (_, before) in zip(rows_of(moved), rows_of(words), strict=True):
        assert (np.sort(after) == np.sort(before)).all()
        changed = (after != before).sum()
        assert 0 <= changed <= 2 * max(1, int(share * len(before) / 2))
        assert share > 0.1 or changed >= 2  # one pair at least, and few meet twice
    assert np.allclose(moved.sum(1), words.sum(1))
    assert np.allclose((moved**2).sum(1), (words**2).sum(1))


def test_a_single_entry_has_nothing_to_change_with():
    words = csr_array(np.diag(np.arange(1.0, 6)))
    assert (swap(words, 1.0, np.arange(5)) != words).nnz == 0
    assert (exchanged(np.array([0, 1, 0]), 0.5, np.arange(3), 0) == [0]).all()


def test_two_entries_always_change_places():
    words = csr_array(np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0]]))
    assert (swap(words, 0.1, np.arange(2)).toarray() == [[2, 1, 0], [0, 4, 3]]).all()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0.01, 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_list_is_a_function_of_its_number_alone(sizes, share, seed):
    sizes, numbers = np.array(sizes), np.arange(len(sizes)) * 7 + 3
    starts = sizes.cumsum() - sizes
    order, alive = exchanged(sizes, share, numbers, seed), kept(sizes, share, numbers, seed)
    for i, size in enumerate(sizes):
        part = slice(starts[i], starts[i] + size)
        assert (order[part] - starts[i] == exchanged(sizes[i : i + 1], share, numbers[i : i + 1], seed)).all()
        assert (alive[part] == kept(sizes[i : i + 1], share, numbers[i : i + 1], seed)).all()
        assert sorted(order[part]) == list(range(starts[i], starts[i] + size))


# --- which documents (oracles 5 and 7)


def test_the_split_is_a_partition_of_the_labels():
    for fraction in (0, 0.05, 0.1, 0.29, 0.3, 1):
        head = SPACE.head_by_fraction(fraction)
        assert int(head.sum()) == int(fraction * 10 + 1e-9)
        assert head[: int(head.sum())].all()  # ties, 8 and 9, by number


def test_documents_with_a_tail_label_come_five_times_and_others_once():
    made = Augmentation("tail", copies=4, fraction=0.3).with_copies(np.arange(12), TARGETS, SPACE)
    tail = {1, 2, 5, 6, 7, 8, 9}
    assert len(made) == 12 + 4 * len(tail)
    for row in range(12):
        assert (made % 12 == row).sum() == (5 if row in tail else 1)
    chosen = Augmentation("tail", copies=4, fraction=0.3).with_copies(np.array(sorted(tail)), TARGETS, SPACE)
    assert len(chosen) == 5 * len(tail)
    assert len(set(chosen.tolist())) == len(chosen)


@pytest.mark.parametrize("options", [{"copies": 0}, {"fraction": 1.0}])
def test_without_copies_or_tail_labels_the_documents_stay_as_they_are(options):
    made = Augmentation("tail", **options).with_copies(np.arange(12), TARGETS, SPACE)
    assert (made == np.arange(12)).all()


def test_a_stage_that_draws_copies_itself_is_refused():
    with pytest.raises(UserError, match="draws copies of documents itself"):
        Augmentation("tail").with_copies(np.array([0, 12]), TARGETS, SPACE)


def test_bags_come_with_their_labels_and_keep_their_length():
    words = matrix(rows=12)
    augmentation = Augmentation("tail", copies=4, fraction=0.3)
    rows = np.array([9, 1, 2, 5])  # of a part of the corpus, in any order
    numbers = augmentation.with_copies(rows, TARGETS, SPACE)[4:]
    mine = TARGETS.take(torch.from_numpy(rows))
    more, labels = augmentation.with_bags(words[rows], mine, rows, numbers, 12)
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


# --- batches


def make_rows(path, values=False):
    rng = np.random.default_rng(0)
    with RowWriter(path, values) as writer:
        for i in range(12):
            tokens = [2, *rng.choice(np.arange(5, 60), size=i + 1, replace=False).tolist(), 3]
            weights = rng.random(len(tokens)).tolist() if values else None
            writer.write(
                EncodedRow(
                    f"d{i}", tokens, TARGETS.indices[TARGETS.indptr[i] : TARGETS.indptr[i + 1]].tolist(), weights
                )
            )
    return EncodedRows(path, 0)


def unpacked(batch, i):
    return batch.ids[i][batch.mask[i]].tolist()


def test_special_tokens_are_never_touched_and_documents_stay_as_they_are(tmp_path):
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


def test_only_an_exchange_keeps_the_words_and_changes_their_order(tmp_path):
    rows = make_rows(tmp_path / "rows.arrow")
    batch = RowsWithCopies(rows, Augmentation("tail", keep=None, swap=0.1), [0, 2, 3])[list(range(12, 24))]
    for i in range(12):
        before = unpacked(rows[[i]], 0)
        assert sorted(unpacked(batch, i)) == sorted(before)
        assert (unpacked(batch, i) == before) == (i == 0)  # a single word


def test_values_of_features_change_places_and_features_leave_with_theirs(tmp_path):
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


def test_a_copy_does_not_depend_on_the_batch_it_is_in_or_on_the_process(tmp_path):
    copied = RowsWithCopies(make_rows(tmp_path / "rows.arrow"), Augmentation("tail", seed=4), [0, 2, 3])
    there = pickle.loads(pickle.dumps(copied))  # as a worker process gets it
    numbers = [30, 3, 14, 25]
    together = copied[numbers]
    for i, number in enumerate(numbers):
        assert unpacked(there[[number]], 0) == unpacked(together, i)
    other = RowsWithCopies(copied.rows, Augmentation("tail", seed=5), [0, 2, 3])[numbers]
    assert not torch.equal(other.ids[:, :5], together.ids[:, :5])


def test_a_document_of_special_tokens_alone_stays():
    batch = Batch(
        torch.tensor([[2, 3]]), torch.ones(1, 2, dtype=torch.bool), Targets.from_lists([[0]]), torch.tensor([9])
    )
    same = Augmentation("tail", keep=0.1).of_batch(batch, np.array([9]), np.array([0, 2, 3]))
    assert torch.equal(same.ids, batch.ids)
