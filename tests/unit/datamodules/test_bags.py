"""Bags of words against slow loops."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from backbones.tfidf import TfIdf
from datamodules.batch import LabelSpace
from datamodules.prepare.bags import GOLDEN, PAIRS, bag_width, bags

VOCAB = 50


@pytest.fixture
def documents():
    random = np.random.default_rng(0)
    return [random.integers(1, VOCAB, size).tolist() for size in (1, 2, 7, 30, 0, 12)]


def as_bags(documents, lead, values=None):
    starts = np.cumsum([0, *map(len, documents)])
    tokens = np.array([token for document in documents for token in document], np.int32)
    return bags(tokens, starts, values, VOCAB, lead).toarray()


def pair_column(one, other):
    code = (one * VOCAB + other) * int(GOLDEN) % 2**64
    return 2 * VOCAB + (code >> 44)


@pytest.mark.parametrize("lead", [0, 1, 5, 100])
def test_first_words_and_their_pairs_count_again(documents, lead):
    found = as_bags(documents, lead)
    assert found.shape == (len(documents), bag_width(VOCAB, lead))
    for row, document in zip(found, documents, strict=True):
        first = document[:lead]
        expected = Counter(document) + Counter(VOCAB + word for word in first)
        expected += Counter(pair_column(*pair) for pair in pairwise(first))
        assert {i: row[i] for i in row.nonzero()[0]} == expected


def test_pairs_depend_on_word_order():
    one, other = as_bags([[3, 4]], 2)[0, 2 * VOCAB :], as_bags([[4, 3]], 2)[0, 2 * VOCAB :]
    assert one.sum() == other.sum() == 1
    assert one.argmax() != other.argmax()
    assert len(one) == PAIRS


def test_values_are_summed():
    found = as_bags([[5, 6, 5]], 2, np.array([0.5, 2.0, 3.0], np.float32))[0]
    assert (found[5], found[6], found[VOCAB + 5], found[VOCAB + 6]) == (3.5, 2.0, 0.5, 2.0)


def test_first_words_weigh_as_much_as_the_document(documents):
    space = LabelSpace(["a"], [1], len(documents), VOCAB)
    features = TfIdf(space, min_documents=1, lead=4)
    tokens = np.array([token for document in documents for token in document], np.int32)
    counts = bags(tokens, np.cumsum([0, *map(len, documents)]), None, VOCAB, 4)
    features.learn(counts)
    squares = features.matrix(counts).toarray() ** 2
    has_words = np.array([len(document) > 0 for document in documents])
    np.testing.assert_allclose(squares[:, :VOCAB].sum(1), has_words / 2, atol=1e-6)
    np.testing.assert_allclose(squares[:, VOCAB:].sum(1), has_words / 2, atol=1e-6)
