"""The tokens of the first reading are those that the finished vocabulary gives."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datamodules.errors import UserError
from datamodules.threads import THREADS, in_threads
from datamodules.tokens import UNFAMILIAR, Learned, LearnedFeatures

TEXTS = ["The cat sat", "the dog", "a cat, a DOG: the end", "", "?!_"]
FEATURES = ["a:1 b:0.5", "b:2 c:1e-2 d:-3", "b c:0", "", "_:1 [PAD]:2", "d:4 d:1"]


def read(reading, texts, counts=None, size=2):
    """Lists of tokens and values, a few texts at a time, and the vocabulary."""
    counts = np.ones(len(texts), dtype=bool) if counts is None else np.array(counts)
    chunks = [slice(i, i + size) for i in range(0, len(texts), size)]
    numbered = [reading.number(reading.cut(texts[part], counts[part])) for part in chunks]
    vocabulary = reading.vocabulary()
    finals = [reading.final(tokens) for tokens in numbered]
    rows = [final.ids[i].tolist() for final in finals for i in range(len(final.ids.sizes))]
    values = [row for final in finals if reading.has_values for row in np.split(final.values, final.ids.offsets[1:-1])]
    return rows, [row.tolist() for row in values], vocabulary


@pytest.mark.parametrize("max_words", [1, 2, 4, 100])
@pytest.mark.parametrize("max_length", [1, 2, 50])
def test_words_are_numbered_as_the_vocabulary_has_them(max_words, max_length):
    rows, _, vocabulary = read(Learned(max_words, max_length), TEXTS)
    assert rows == vocabulary.encode(TEXTS)


@pytest.mark.parametrize("max_words", [3, 4, 5, 100])
def test_features_are_numbered_as_the_vocabulary_has_them(max_words):
    rows, values, vocabulary = read(LearnedFeatures(max_words, 1), FEATURES)
    expected = vocabulary.encode_with_values(FEATURES)
    assert (rows, values) == (expected[0], [np.float32(row).tolist() for row in expected[1]])


def test_words_of_texts_that_do_not_count_are_unknown():
    rows, _, vocabulary = read(Learned(100, 50), ["a b", "b c", "c a"], [True, False, True])
    assert set(vocabulary.words()) == {"[PAD]", "[UNK]", "a", "b", "c"}
    rows, _, vocabulary = read(Learned(100, 50), ["a", "b a"], [True, False])
    assert rows == [[2], [vocabulary.unk_id, 2]]


def test_a_feature_without_a_number_is_a_mistake_of_the_user():
    with pytest.raises(UserError, match="is not a feature"):
        read(LearnedFeatures(100, 1), ["a:x"])


@given(texts=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), min_size=1, max_size=4))
@example(
    texts=[
        "\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3",
        "\u03f9\u03a3",
        "\u0130stanbul \ufb01n",
        "caf\xe9\u2019s \xbd\xb5m",
        "e\u0301",
    ]
)
@settings(deadline=None, max_examples=200)
def test_any_text_is_cut_as_the_tokenizer_cuts_it(texts):
    rows, _, vocabulary = read(Learned(10_000, 1000), texts)
    assert rows == vocabulary.encode(texts)
    assert all(vocabulary.unk_id not in row or row == [vocabulary.unk_id] for row in rows)


def test_every_familiar_character_is_cut_as_the_tokenizer_cuts_it():
    familiar = [c for c in map(chr, range(0x2100)) if not UNFAMILIAR.search(c)]
    texts = [f"a{c}B {c}{c} Z{unicodedata.normalize('NFKC', c)}" for c in familiar]
    rows, _, vocabulary = read(Learned(10_000, 1000), texts, size=100)
    assert len(texts) > 900
    assert rows == vocabulary.encode(texts)


def test_work_in_threads_keeps_the_order_and_stays_a_few_items_ahead():
    made = []

    def items():
        for number in range(20):
            made.append(number)
            yield number

    for done, (item, result) in enumerate(in_threads(lambda number: -number, items())):
        assert (item, result) == (done, -done)
        assert len(made) <= done + THREADS + 1
    assert made == list(range(20))


def test_a_mistake_in_a_thread_comes_out():
    def fail(item):
        raise UserError("wrong")

    with pytest.raises(UserError, match="wrong"):
        list(in_threads(fail, range(5)))
