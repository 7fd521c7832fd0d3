"""TF-IDF weights of a matrix and of a batch against a loop over words."""

import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from backbones.tfidf import TfIdf, tfidf
from datamodules.batch import Batch, LabelSpace, Targets
from tests.support.documents import label_space, length_mask
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([1], 5)
DOCUMENTS = [[2, 3, 2, 2, 4], [3], [4, 5, 4], [2, 6, 3, 5], [7, 8, 8, 3, 2]]
VALUES = [[0.5, 2.0, 1.0, 0.25, 3.0], [4.0], [0.5, -1.5, 1.0], [1.0, 1.0, 0.5, 7.0], [0.1, 2.0, 2.0, 1.0, 1.0]]


def batch_of(documents, values=None, columns=0):
    mask = length_mask([len(d) for d in documents], columns)
    ids, padded = torch.zeros(mask.shape, dtype=torch.long), torch.zeros(mask.shape)
    ids[mask] = torch.tensor([*chain(*documents)])
    if values is not None:
        padded[mask] = torch.tensor([*chain(*values)])
    rows = torch.arange(len(documents))
    return Batch(ids, mask, Targets.from_lists([[]] * len(documents)), rows, None if values is None else padded)


def counted(documents, values=None):
    """Counters of words, or sums of their values."""
    found = []
    for document, each in zip(documents, values or [[1.0] * len(d) for d in documents], strict=True):
        total = Counter()
        for word, value in zip(document, each, strict=True):
            total[word] += value
        found.append(total)
    return found


def matrix_of(counters):
    dense = np.zeros((len(counters), SPACE.vocab_size), np.float32)
    for row, counter in enumerate(counters):
        for word, value in counter.items():
            dense[row, word] = value
    return csr_array(dense)


def weights_of(counter, training, min_documents, sublinear):
    """scikit-learn's, with smooth_idf and norm l2: idf = ln((1 + N) / (1 + df)) + 1, and sublinear_tf 1 + ln(tf)."""
    weights = {}
    for word, count in counter.items():
        frequency = sum(word in other for other in training)
        tf = 1 + math.log(count) if sublinear and count > 1 else count
        if frequency >= min_documents and tf:
            weights[word] = tf * (math.log((1 + len(training)) / (1 + frequency)) + 1)
    length = math.sqrt(sum(weight**2 for weight in weights.values()))
    return {word: weight / length for word, weight in weights.items()}


def learned(training, **settings):
    tfidf = TfIdf(SPACE, **settings)
    tfidf.learn(matrix_of(training))
    return tfidf


def from_batch(tfidf, batch):
    ids, weights = tfidf(batch)
    return [
        {word: weight for word, weight in zip(*row, strict=True) if weight}
        for row in zip(ids.tolist(), weights.tolist(), strict=True)
    ]


def from_matrix(matrix):
    rows = [slice(a, b) for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]
    return [dict(zip(matrix.indices[r].tolist(), matrix.data[r].tolist(), strict=True)) for r in rows]


@pytest.mark.parametrize("values", [None, VALUES], ids=["words", "features"])
@pytest.mark.parametrize("min_documents", [1, 2, 3])
@pytest.mark.parametrize("sublinear", [True, False])
def test_matrix_batch_and_loop_agree(values, min_documents, sublinear):
    training = counted(DOCUMENTS, values)
    tfidf = learned(training, min_documents=min_documents, sublinear=sublinear)
    expected = [weights_of(counter, training, min_documents, sublinear) for counter in training]
    batch = batch_of(DOCUMENTS, values, columns=3)
    whole, read = tfidf.matrix(matrix_of(training)), tfidf.matrix(tfidf.counts(batch))
    assert whole.dtype == np.float32
    for found in (from_batch(tfidf, batch), from_matrix(whole), from_matrix(read)):
        for got, wanted in zip(found, expected, strict=True):
            assert got == pytest.approx(wanted, abs=1e-6)


def test_padding_and_unseen_words_weigh_nothing():
    tfidf = learned(counted([[2, 3], [2, 3]]))
    ids, weights = tfidf(batch_of([[2, 8, 8], [7]], columns=2))
    assert ids.shape == weights.shape == (2, 5)
    assert from_batch(tfidf, batch_of([[2, 8, 8], [7]], columns=2)) == [{2: pytest.approx(1.0)}, {}]
    assert weights.isfinite().all()
    assert tfidf.matrix(tfidf.counts(batch_of([[2, 8, 8], [7]]))).nnz == 1


def test_min_documents_that_leaves_no_word_is_rejected():
    with raises(UserError, "min_documents", 7):
        learned(counted([[2, 3], [2, 3]]), min_documents=7)


@pytest.mark.parametrize("value", [1e-25, 1e-3, 1.0, 1e20])
def test_documents_have_unit_norm(value):
    counts = csr_array(np.full((2, SPACE.vocab_size), value, np.float32))
    tfidf = TfIdf(SPACE, sublinear=False)
    tfidf.learn(counts)
    assert tfidf.matrix(counts).power(2).sum(axis=1) == pytest.approx([1, 1], rel=1e-5)


@pytest.mark.parametrize(("idf", "expected"), [(True, [0.145, 0.989]), (False, [0.7071, 0.7071])])
def test_weights_are_not_weighted_again_without_idf(idf, expected):
    """Two features of value 0.5, in 1,000 and in 2 of 1,000 documents."""
    values = np.full(1002, 0.5, np.float32)
    counts = csr_array((values, np.array([2, 3, 2, 3] + [2] * 998), np.array([0, 2, *range(4, 1003)])), (1000, 4))
    space = LabelSpace(["a"], [1000], 1000, vocab_size=4, idf=idf)
    learned = TfIdf(space)
    learned.learn(counts)
    for weights in (learned.matrix(counts), tfidf(counts, idf)):
        assert weights.data[:2] == pytest.approx(expected, abs=5e-4)
    batch = Batch(
        torch.tensor([[2, 3]]), torch.ones(1, 2, dtype=torch.bool), Targets.from_lists([[0]]), torch.tensor([0]),
        torch.tensor([[0.5, 0.5]]),
    )  # fmt: skip
    assert learned(batch)[1][0].tolist() == pytest.approx(expected, abs=5e-4)
