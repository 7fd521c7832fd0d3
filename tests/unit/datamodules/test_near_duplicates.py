"""Near duplicates: estimates against the Jaccard index, and candidates against an exhaustive search."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.tools.near_duplicates import (
    NO_WORDS,
    WORDS,
    Signatures,
    candidates,
    jaccard,
    shingles,
    signature,
)

WORD_LIST = [f"w{i}" for i in range(2000)]


def document(rng, length=150):
    return rng.choices(WORD_LIST, k=length)


def changed(words, rng, share):
    return [rng.choice(WORD_LIST) if rng.random() < share else word for word in words]


def runs(words):
    """The set of runs of three words, by a slow loop."""
    width = min(WORDS, len(words))
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)} if words else set()


@given(st.lists(st.sampled_from("abcdÄ7"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_jaccard_index_of_word_runs(one, other):
    found = jaccard(shingles(" ".join(one)), shingles(" -- ".join(other)))
    a, b = runs([word.lower() for word in one]), runs(other)
    assert len(shingles(" ".join(one))) == len(a)
    assert found == pytest.approx(len(a & b) / max(len(a | b), 1))


def test_case_and_punctuation_do_not_matter_but_order_does():
    assert (shingles("The Cat, sat. (down)") == shingles("the cat sat down")).all()
    assert jaccard(shingles("the cat sat down"), shingles("down sat cat the")) == 0


def test_features_are_a_set_of_names_with_values():
    one, other = shingles("a:1 b:2 c:3", True), shingles("c:3 b:2 a:2", True)
    assert jaccard(one, other) == pytest.approx(2 / 4)
    assert len(shingles("", True)) == len(shingles("")) == 0


def test_equal_entries_of_signatures_estimate_the_jaccard_index():
    rng = random.Random(0)
    errors = []
    for _ in range(60):
        words = document(rng)
        one, other = (shingles(" ".join(words)), shingles(" ".join(changed(words, rng, rng.random() / 4))))
        errors.append((signature(one) == signature(other)).mean() - jaccard(one, other))
    assert abs(np.mean(errors)) < 0.03
    assert np.std(errors) < 0.08


def test_candidates_include_those_of_an_exhaustive_search():
    rng = random.Random(1)
    train = [document(rng) for _ in range(300)]
    others = [changed(rng.choice(train), rng, 0.02) for _ in range(100)] + [document(rng) for _ in range(100)]
    sides = []
    for documents in (train, others):
        sides.append(signatures := Signatures())
        for words in documents:
            signatures.add(" ".join(words))
    found = candidates(sides[0].matrix(), sides[1].matrix(), 0.9)
    sets = [[shingles(" ".join(words)) for words in documents] for documents in (train, others)]
    near = {(i, j) for i, other in enumerate(sets[1]) for j, one in enumerate(sets[0]) if jaccard(one, other) >= 0.9}
    assert len(near) > 20
    assert near <= {(i, j) for i, rows in found.items() for j in rows}
    assert not any(i >= 100 for i in found)


def test_documents_without_words_have_no_duplicates():
    signatures = Signatures()
    for text in ("", "...", "a b c d"):
        signatures.add(text)
    matrix = signatures.matrix()
    assert (matrix[:2] == NO_WORDS).all()
    assert candidates(matrix, matrix, 0.9) == {2: [2]}
    assert candidates(matrix[:0], matrix, 0.9) == candidates(matrix, matrix[:0], 0.9) == {}


def test_few_of_many_equal_documents_are_compared():
    signatures = Signatures()
    for _ in range(3000):
        signatures.add("one and the same text")
    assert candidates(signatures.matrix(), signatures.matrix()[:1], 0.9) == {0: [0, 1, 2, 3, 4]}
