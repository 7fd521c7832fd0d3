"""Label trees against slow loops: levels, TF-IDF, label features, and balanced 2-means."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from backbones.tfidf import tfidf
from datamodules.batch import Targets
from heads.tree import label_tree
from heads.tree.label_tree import ancestor, balanced_clusters, children, level_widths, pifa, right_halves
from tests.support.errors import raises
from zoo.core.errors import UserError

COUNTS = np.array([[2, 0, 1, 0, 0], [0, 3, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 7, 0]])  # the last token never occurs
TRUTH = [[0, 2], [0], [1], [0, 4]]  # label 3 has no document, label 1 one without tokens, 4 is past the labels


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def random_features(labels, words=40, seed=0):
    """Sparse rows of unit length, no two of them alike."""
    rng = np.random.default_rng(seed)
    dense = rng.random((labels, words)) * (rng.random((labels, words)) < 0.3)
    dense[np.arange(labels), np.arange(labels) % words] += 0.1
    return csr_array(unit(dense).astype(np.float32))


def slow_half(rows, draws):
    """Halves of one node, by dense balanced 2-means as published."""
    size = len(rows)
    one, other = int(draws[0] * size), int(draws[1] * (size - 1))
    centres, best = rows[[one, other + (other >= one)]], -math.inf
    for _ in range(20):
        similarity = rows @ centres.T
        order = sorted(range(size), key=lambda i: (similarity[i, 1] - similarity[i, 0], i))
        parts = [sorted(order[: size // 2]), sorted(order[size // 2 :])]
        centres = unit(np.stack([rows[part].sum(0) for part in parts]))
        mean = sum((rows[part] @ centre).sum() for part, centre in zip(parts, centres, strict=True)) / size
        if mean - best < 1e-4:
            break
        best = mean
    return parts


def slow_clusters(features, depth, seed):
    draws = np.random.default_rng(seed).random((2**depth, 2))
    dense, found = features.toarray().astype(np.float64), np.zeros(features.shape[0], dtype=int)

    def split(labels, node):
        if node >= 2**depth:
            found[labels] = node - 2**depth
            return
        for side, part in enumerate(slow_half(dense[labels], draws[node])):
            split(labels[part], 2 * node + side)

    split(np.arange(len(found)), 1)
    return found


@pytest.mark.parametrize(
    ("num_labels", "clusters", "max_leaf", "height", "fanout", "widths"),
    [
        (1000, 64, 8, 2, 8, [8, 64]),
        (1000, 128, 8, 9, 8, [2, 16, 128]),
        (670_091, None, 8, 3, 8, [2**11, 2**14, 2**17]),
        (800, None, 100, 1, 2, [8]),  # just fits
        (801, None, 100, 1, 2, [16]),
        (5, None, 1, 1, 2, [4]),  # no cluster may be empty
        (5, None, 100, 3, 2, [2]),
        (2, 2, 1, 3, 2, [2]),
    ],
)
def test_level_widths(num_labels, clusters, max_leaf, height, fanout, widths):
    assert level_widths(num_labels, clusters, max_leaf, height, fanout) == widths


@pytest.mark.parametrize(("height", "fanout"), [(3, 4), (9, 8)])
def test_ancestors_equal_a_walk_up_the_tree(height, fanout):
    parent = {(depth, node): (depth - 1, node // 2) for depth in range(1, 7) for node in range(2**depth)}
    widths = level_widths(64, 64, 1, height, fanout)
    for i, shallow in enumerate(widths):
        for deep in widths[i:]:
            walked = []
            for node in range(deep):
                place = (int(math.log2(deep)), node)
                while 2 ** place[0] > shallow:
                    place = parent[place]
                walked.append(place[1])
            assert ancestor(torch.arange(deep), deep, shallow).tolist() == walked
            assert ancestor(np.arange(deep), deep, shallow).tolist() == walked


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("clusters", value) for value in (12, 1, 0, 128)), ("fanout", 6)],
)
def test_invalid_settings_are_rejected(name, value):
    settings = {"num_labels": 100, "clusters": None, "max_leaf": 8, "height": 2, "fanout": 8} | {name: value}
    with raises(UserError, f"`tree.{name}={value}`"):
        level_widths(**settings)


def test_a_single_label_is_rejected():
    with raises(UserError, 1, 2):
        level_widths(1, None, 8, 2, 8)


def test_children_of_clusters():
    cluster_of = [1, 0, 3, 1, 0, 1, 3]
    expected = [[1, 4, -1], [0, 3, 5], [-1, -1, -1], [2, 6, -1]]
    for given in (np.array(cluster_of), torch.tensor(cluster_of)):
        table = children(given, 4)
        assert table.dtype == torch.int64
        assert table.tolist() == expected


def slow_tfidf():
    documents, rows = len(COUNTS), []
    for counts in COUNTS:
        row = []
        for word, count in enumerate(counts):
            having = sum(1 for other in COUNTS if other[word])
            row.append((1 + math.log(count)) * (math.log((1 + documents) / (1 + having)) + 1) if count else 0.0)
        length = math.sqrt(sum(x * x for x in row)) or 1.0
        rows.append([x / length for x in row])
    return np.array(rows)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tfidf_equals_a_loop(dtype):
    counts = csr_array(COUNTS.astype(dtype))
    weights = tfidf(counts)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights.toarray(), slow_tfidf(), rtol=1e-6)
    assert (counts.toarray() == COUNTS).all()  # its input is as it was


def test_pifa_equals_a_loop():
    documents, rows = slow_tfidf(), []
    for label in range(4):
        total = np.zeros(COUNTS.shape[1])
        for document, labels in zip(documents, TRUTH, strict=True):
            total += document * (label in labels)
        rows.append(total / (np.linalg.norm(total) or 1.0))
    features = pifa(tfidf(csr_array(COUNTS)), Targets.from_lists(TRUTH), 4)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features.toarray(), np.stack(rows), rtol=1e-6)
    assert np.diff(features.indptr).tolist() == [4, 0, 2, 0]


@pytest.mark.parametrize("together", [0, 100, 2**20], ids="together={}".format)
@pytest.mark.parametrize(("labels", "depth"), [(2, 1), (5, 1), (37, 3), (129, 7)])
def test_every_split_is_balanced(labels, depth, together, monkeypatch):
    monkeypatch.setattr(label_tree, "TOGETHER", together)
    found = balanced_clusters(random_features(labels), depth, seed=0)
    assert found.shape == (labels,)
    assert found.dtype == np.int64
    for level in range(1, depth + 1):
        sizes = np.bincount(found >> (depth - level), minlength=2**level)
        left, right = sizes[::2], sizes[1::2]
        assert (right - left).min() >= 0  # of an odd number the right half gets one more
        assert (right - left).max() <= 1
        assert len(sizes) == 2**level


@pytest.mark.parametrize("together", [0, 300, 2**20], ids="together={}".format)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("labels", "depth"), [(40, 1), (101, 4), (70, 6)])
def test_clusters_equal_a_slow_loop(labels, depth, seed, together, monkeypatch):
    monkeypatch.setattr(label_tree, "TOGETHER", together)
    features = random_features(labels, seed=seed)
    assert balanced_clusters(features, depth, seed).tolist() == slow_clusters(features, depth, seed).tolist()


@pytest.mark.parametrize("together", [0, 2**20], ids="together={}".format)
def test_the_number_of_threads_does_not_matter(together, monkeypatch):
    monkeypatch.setattr(label_tree, "TOGETHER", together)
    features = random_features(300)
    one, two, again = (balanced_clusters(features, 5, 7, threads) for threads in (1, 2, 2))
    assert (one == two).all()
    assert (two == again).all()
    assert (one != balanced_clusters(features, 5, 8)).any()


def test_64_bit_indices_give_the_same_clusters():
    features = random_features(50)
    wide = csr_array((features.data, features.indices.astype(np.int64), features.indptr.astype(np.int64)))
    assert (balanced_clusters(wide, 3, 0) == balanced_clusters(features, 3, 0)).all()


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_labels_without_features_are_clustered(share):
    dense = random_features(40).toarray()
    dense[int(40 * share) :] = 0
    found = balanced_clusters(csr_array(dense), 4, 0)
    assert set(np.bincount(found, minlength=16)) <= {2, 3}


def test_ties_go_left_by_number():
    leaning = np.array([2, 1, 1, 1, 0, 5, 5, 5, 5], dtype=np.float32)
    assert right_halves(leaning, np.array([5, 4])).astype(int).tolist() == [1, 0, 1, 1, 0, 0, 0, 1, 1]


def test_more_clusters_than_labels_are_rejected():
    with raises(ValueError, 7, 8):
        balanced_clusters(random_features(7), 3, 0)
