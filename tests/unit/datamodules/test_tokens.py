"""Token ids of the first pass equal those of the finished vocabulary."""

import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datamodules.prepare.threads import THREADS, map_in_threads
from datamodules.prepare.tokens import UNFAMILIAR, FeatureTokenizer, WordTokenizer
from tests.support.errors import raises
from zoo.core.errors import UserError

TEXTS = ["The cat sat", "the dog", "a cat, a DOG: the end", "", "?!_"]
FEATURES = ["a:1 b:0.5", "b:2 c:1e-2 d:-3", "b c:0", "", "_:1 [PAD]:2", "d:4 d:1"]


def read(reading, texts, counts=None, size=2):
    """Lists of tokens and values, a few texts at a time, and the vocabulary."""
    counts = np.ones(len(texts), dtype=bool) if counts is None else np.array(counts)
    chunks = [slice(i, i + size) for i in range(0, len(texts), size)]
    numbered = [reading.index(reading.tokenize(texts[part], counts[part])) for part in chunks]
    vocabulary = reading.vocabulary()
    finals = [reading.remap(tokens) for tokens in numbered]
    rows = [final.ids[i].tolist() for final in finals for i in range(len(final.ids.sizes))]
    values = [row for final in finals if reading.has_values for row in np.split(final.values, final.ids.offsets[1:-1])]
    return rows, [row.tolist() for row in values], vocabulary


@pytest.mark.parametrize("max_words", [1, 2, 4, 100])
@pytest.mark.parametrize("max_length", [1, 2, 50])
def test_word_ids_equal_those_of_the_vocabulary(max_words, max_length):
    rows, _, vocabulary = read(WordTokenizer(max_words, max_length), TEXTS)
    assert rows == vocabulary.encode(TEXTS)


@pytest.mark.parametrize("max_words", [3, 4, 5, 100])
def test_feature_ids_equal_those_of_the_vocabulary(max_words):
    rows, values, vocabulary = read(FeatureTokenizer(max_words, 1), FEATURES)
    expected = vocabulary.encode_with_values(FEATURES)
    assert (rows, values) == (expected[0], [np.float32(row).tolist() for row in expected[1]])


def test_words_of_uncounted_texts_are_unknown():
    rows, _, vocabulary = read(WordTokenizer(100, 50), ["a b", "b c", "c a"], [True, False, True])
    assert set(vocabulary.words()) == {"[PAD]", "[UNK]", "a", "b", "c"}
    rows, _, vocabulary = read(WordTokenizer(100, 50), ["a", "b a"], [True, False])
    assert rows == [[2], [vocabulary.unk_id, 2]]


def test_features_without_a_number_are_rejected():
    with raises(UserError, "a:x"):
        read(FeatureTokenizer(100, 1), ["a:x"])


@given(texts=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), min_size=1, max_size=4))
@example(texts=["\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3", "\u03f9\u03a3", "\u0130stanbul \ufb01n", "e\u0301"])
@settings(deadline=None, max_examples=200)
def test_random_texts_are_split_like_the_tokenizer_does(texts):
    rows, _, vocabulary = read(WordTokenizer(10_000, 1000), texts)
    assert rows == vocabulary.encode(texts)
    assert all(vocabulary.unk_id not in row or row == [vocabulary.unk_id] for row in rows)


def test_familiar_characters_are_split_like_the_tokenizer_does():
    familiar = [c for c in map(chr, range(0x2100)) if not UNFAMILIAR.search(c)]
    texts = [f"a{c}B {c}{c} Z{unicodedata.normalize('NFKC', c)}" for c in familiar]
    rows, _, vocabulary = read(WordTokenizer(10_000, 1000), texts, size=100)
    assert len(texts) > 900
    assert rows == vocabulary.encode(texts)


def test_threads_keep_the_order_and_stay_a_few_items_ahead():
    made = []

    def items():
        for number in range(20):
            made.append(number)
            yield number

    for done, (item, result) in enumerate(map_in_threads(lambda number: -number, items())):
        assert (item, result) == (done, -done)
        assert len(made) <= done + THREADS + 1
    assert made == list(range(20))


def test_errors_in_threads_are_raised():
    def fail(item):
        raise UserError("wrong")

    with raises(UserError, "wrong"):
        list(map_in_threads(fail, range(5)))
