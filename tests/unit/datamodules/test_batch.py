"""Targets against loops, and label spaces against their definitions."""

import io
import math
from dataclasses import asdict
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.rows import pad, pad_values
from tests.support.documents import label_space as spaces

LISTS = st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=6)
COUNTS = st.lists(st.integers(0, 150), min_size=1, max_size=20)


@given(labels=LISTS, num_labels=st.integers(1, 13))
@settings(deadline=None)
def test_dense_marks_known_positives_only(labels, num_labels):
    dense = Targets.from_lists(labels).dense(num_labels)
    assert dense.shape == (len(labels), num_labels)
    assert dense.tolist() == [[float(column in row) for column in range(num_labels)] for row in labels]


@given(labels=LISTS)
@settings(deadline=None)
def test_from_lists_sorts_and_drops_duplicates(labels):
    targets, unique = Targets.from_lists(labels), [sorted(set(row)) for row in labels]
    assert targets.indptr.dtype == targets.indices.dtype == torch.long
    assert len(targets) == len(labels)
    assert [targets.indices[a:b].tolist() for a, b in pairwise(targets.indptr.tolist())] == unique
    assert targets.counts.tolist() == [len(row) for row in unique]
    assert targets.rows.tolist() == [i for i, row in enumerate(unique) for _ in row]


def test_moving_a_batch_moves_its_targets():
    batch = Batch(torch.ones(2, 3).long(), torch.ones(2, 3).bool(), Targets.from_lists([[1], [0, 2]]), torch.arange(2))
    moved = batch.to("meta")
    assert type(moved) is Batch
    assert type(moved.targets) is Targets
    assert moved.targets.indices.is_meta
    assert moved.ids.is_meta
    assert not batch.ids.is_meta
    assert len(batch) == len(moved) == 2


label_space = partial(spaces, num_documents=1000)


def test_head_by_count_includes_the_threshold():
    assert label_space([120, 50, 49, 0]).head_by_count(50).tolist() == [True, True, False, False]


def test_ties_go_to_the_lower_label():
    space = label_space([5, 9, 5, 5, 1])
    assert space.by_frequency().tolist() == [1, 0, 2, 3, 4]
    assert space.head_by_tail_size(3).tolist() == [True, True, False, False, False]
    assert space.head_by_tail_size(0).all()
    assert not space.head_by_tail_size(5).any()
    assert not space.head_by_tail_size(99).any()


@pytest.mark.parametrize(("fraction", "labels", "size"), [(0.5, 7, 3), (0.1, 9, 0), (0.29, 100, 29), (1.0, 5, 5)])
def test_head_by_fraction_rounds_down(fraction, labels, size):
    assert label_space([3] * labels).head_by_fraction(fraction).tolist() == [True] * size + [False] * (labels - size)


@given(counts=COUNTS, data=st.data())
@settings(deadline=None)
def test_head_labels_are_the_most_frequent(counts, data):
    space = label_space(counts)
    num_tail, fraction = data.draw(st.integers(0, len(counts))), data.draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
    sizes = {len(counts) - num_tail: space.head_by_tail_size(num_tail)}
    sizes[math.floor(fraction * len(counts))] = space.head_by_fraction(fraction)
    for size, mask in sizes.items():
        head = [i for i, chosen in enumerate(mask.tolist()) if chosen]
        assert head == sorted(sorted(range(len(counts)), key=lambda i: (-counts[i], i))[:size])


def test_borders_of_the_frequency_classes():
    space = label_space([101, 100, 21, 20, 1, 0], unseen=["u"])
    assert space.frequency_class().tolist() == [2, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ((0.55, 1.5), [1.770430, 3.552147, 6.907755, 8.824189]),
        ((0.6, 2.6), [1.791618, 3.786004, 6.907755, 8.181580]),
        ((0.5, 0.4), [1.697621, 3.167554, 6.907755, 12.052398]),
    ],
)
def test_inverse_propensity_at_worked_examples(constants, expected):
    space = label_space([100, 10, 1], unseen=["u"], propensity_a=constants[0], propensity_b=constants[1])
    weights = space.inverse_propensity()
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx(expected, abs=5e-7)


def test_inverse_propensity_uses_the_reference_counts():
    space = label_space(
        [90, 9], num_documents=900, unseen=["u"], reference_counts=[100, 10, 1], reference_documents=1000
    )
    assert space.inverse_propensity().tolist() == pytest.approx([1.770430, 3.552147, 6.907755], abs=5e-7)


@given(documents=st.integers(1, 10**6), share=st.floats(0, 1))
@settings(deadline=None)
def test_prior_is_strictly_between_0_and_1(documents, share):
    prior = label_space([documents, round(share * documents), 0], num_documents=documents).prior()
    assert ((prior > 0) & (prior < 1)).all()
    assert prior.logit().isfinite().all()
    assert prior[1].item() == pytest.approx(share, abs=1 / (documents + 1) + 1e-6)


def test_space_is_saved_as_plain_values():
    space = label_space([4, 2], unseen=["u"], reference_counts=[5, 2, 1], reference_documents=1200, pad_id=3)
    file = io.BytesIO()
    torch.save(asdict(space), file)
    file.seek(0)
    assert LabelSpace(**torch.load(file, weights_only=True)) == space


def test_new_labels_are_appended():
    space = label_space([4, 2], unseen=["u", "v"], reference_counts=[5, 2, 7, 1], reference_documents=1200)
    grown = space.grown({"new": 3, "v": 2, "u": 1})
    assert grown.names == ["l0", "l1", "new", "v", "u"]
    assert grown.counts == [4, 2, 3, 2, 1]
    assert grown.unseen == []
    assert grown.reference_counts == [5, 2, 3, 2, 7]
    assert (grown.added, grown.num_documents, grown.reference_documents) == (3, 1000, 1200)
    assert space == label_space([4, 2], unseen=["u", "v"], reference_counts=[5, 2, 7, 1], reference_documents=1200)
    again = space.grown({"v": 2}).grown({"new": 1})
    assert (again.names[2:], again.unseen, again.added) == (["v", "new"], ["u"], 2)
    assert again.reference_counts == [5, 2, 2, 1, 7]
    assert space.grown({}) == space


@given(counts=COUNTS, more=st.lists(st.integers(1, 200), max_size=4), tail=st.integers(0, 20))
@settings(deadline=None)
def test_new_labels_are_tail_labels(counts, more, tail):
    space = label_space(counts)
    grown = space.grown({f"new{i}": count for i, count in enumerate(more)})
    for split in (
        lambda s: s.head_by_count(tail),
        lambda s: s.head_by_tail_size(tail),
        lambda s: s.head_by_fraction(tail / 20),
    ):
        assert split(grown).tolist() == split(space).tolist() + [False] * len(more)
    assert len(grown.inverse_propensity()) == len(grown.frequency_class()) == len(counts) + len(more)


def test_documents_count_for_added_labels_only():
    space = label_space([4, 2], unseen=["u"], reference_counts=[5, 2, 7]).grown({"u": 3, "new": 1})
    more = space.with_more({"l0": 9, "u": 2, "new": 2})
    assert more.counts == [4, 2, 5, 3]
    assert more.reference_counts == [5, 2, 7, 3]
    assert space.counts == [4, 2, 3, 1]
    assert space.with_more({}) == space


def test_first_tokens_of_a_batch():
    ids, mask = pad([np.array([3, 4, 5]), np.array([6])], 0)
    values = pad_values([np.array([1.0, 2.0, 3.0]), np.array([4.0])], mask)
    batch = Batch(ids, mask, Targets.from_lists([[], []]), torch.arange(2), values)
    short = batch.first(2)
    assert short.ids.tolist() == [[3, 4], [6, 0]]
    assert short.mask.tolist() == [[True, True], [True, False]]
    assert short.values.tolist() == [[1.0, 2.0], [4.0, 0.0]]
    assert batch.first(None) is batch.first(3) is batch
    assert Batch(ids, mask, batch.targets, batch.rows).first(1).values is None
