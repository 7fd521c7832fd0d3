"""Texts become tokens in one reading: a new word gets the next number, and its final one when all have been counted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from datamodules.rows import Lists, distinct_pairs
from datamodules.vocab import (
    PAD,
    UNK,
    VALUES,
    VALUES_ID,
    FeatureVocabulary,
    Vocabulary,
    feature_tokenizer,
    parse_feature,
    word_tokenizer,
)

NOTHING = b"_"  # stands in a document that has no words: no word holds it
# Characters that Python and the tokenizer take alike, one by one (a test compares them): Latin, Greek and Cyrillic
# letters, punctuation. Python is ten times as fast; a text with any other character is cut by the tokenizer itself.
UNFAMILIAR = re.compile("[^\0-\u024f\u0370-\u04ff\u2010-\u205e\u20ac]")
SEPARATORS = re.compile(r"[^\w\0-\x7f]+")  # those that are not ASCII
ASCII = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128)).encode()
LOWER = ASCII + bytes(range(128, 256))  # what each byte of UTF-8 becomes


@dataclass(frozen=True)
class Tokens:
    """Tokens of some documents, and the value of each where they are features."""

    ids: Lists
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Cut:
    """Tokens of some documents, numbered among themselves: `names[i]` is in `documents[i]` of those that count."""

    tokens: Tokens
    names: list[str]
    documents: np.ndarray


class Numbers(dict[str, int]):
    """Names, numbered in the order in which they are first asked for."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number

    def of(self, names: list[str]) -> np.ndarray:
        return np.fromiter(map(self.__getitem__, names), np.int32, len(names))


class Reading(Protocol):
    """What turns the texts of a corpus into tokens while it is read."""

    has_values: bool

    def cut(self, texts: list[str], counts: np.ndarray) -> Cut:
        """Tokens of texts, in any thread; `counts` says of which texts words are counted."""

    def number(self, cut: Cut) -> Tokens:
        """Tokens with numbers that hold until the reading ends; to be called in the order of the texts."""

    def vocabulary(self) -> Vocabulary:
        """At the end of the reading."""

    def final(self, tokens: Tokens) -> Tokens:
        """Numbered tokens, as the vocabulary has them."""


class Pretrained:
    """Tokens of a tokenizer that is there."""

    has_values = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def cut(self, texts: list[str], counts: np.ndarray) -> Cut:
        rows = self._vocabulary.encode(texts)
        ids = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
        return Cut(Tokens(Lists.of_sizes([len(row) for row in rows], ids)), [], np.zeros(0, dtype=np.int64))

    def number(self, cut: Cut) -> Tokens:
        return cut.tokens

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def final(self, tokens: Tokens) -> Tokens:
        return tokens


class Learned:
    """Words of the training documents, by falling number of documents that have them, ties by alphabet.

    Args:
        max_words: that are kept at most, special tokens included.
        max_length: tokens kept of a document, from its beginning.
    """

    has_values = False
    special: ClassVar[dict[str, int]] = {PAD: 0, UNK: 1}
    make_tokenizer: Callable[[dict[str, int]], Tokenizer] = staticmethod(word_tokenizer)
    make_vocabulary = Vocabulary

    def __init__(self, max_words: int, max_length: int) -> None:
        self.max_words, self.max_length = max_words, max_length
        self.numbers = Numbers()
        self.documents = np.zeros(1024, dtype=np.int64)  # that have each, with room for more
        self.tokenizer = self.make_tokenizer(self.special)

    def cut(self, texts: list[str], counts: np.ndarray) -> Cut:
        words = pc.ascii_split_whitespace(_strings([self._spaced(text) for text in texts]))
        coded = words.flatten().dictionary_encode()
        ids, names = Lists(words.offsets.to_numpy(), coded.indices.to_numpy()), coded.dictionary.to_pylist()
        places = np.arange(len(ids.values)) - ids.offsets[:-1].repeat(ids.sizes)
        return Cut(Tokens(ids.chosen(places < self.max_length)), names, documents_with(ids, counts, len(names)))

    def number(self, cut: Cut) -> Tokens:
        numbers = self.numbers.of(cut.names)
        while len(self.documents) < len(self.numbers):
            self.documents = np.concatenate([self.documents, np.zeros_like(self.documents)])
        self.documents[numbers] += cut.documents
        ids = cut.tokens.ids
        return replace(cut.tokens, ids=Lists(ids.offsets, numbers[ids.values]))

    def vocabulary(self) -> Vocabulary:
        documents = self.documents[: len(self.numbers)].tolist()
        counted = {name: documents[i] for name, i in self.numbers.items() if documents[i] and self._is_token(name)}
        ranked = sorted(counted, key=lambda name: (-counted[name], name))[: max(self.max_words - len(self.special), 0)]
        tokens = self.special | {name: i for i, name in enumerate(ranked, len(self.special))}
        self.finals = np.full(len(self.numbers), -1, dtype=np.int32)
        self.finals[[self.numbers[name] for name in ranked]] = np.arange(len(self.special), len(tokens))
        return self.make_vocabulary(self.make_tokenizer(tokens), self.max_length)

    def final(self, tokens: Tokens) -> Tokens:
        """A word that the vocabulary lacks is unknown."""
        ids = self.finals[tokens.ids.values]
        return Tokens(Lists(tokens.ids.offsets, np.where(ids < 0, self.special[UNK], ids).astype(np.int32)))

    def _is_token(self, name: str) -> bool:
        return name != NOTHING.decode()

    def _spaced(self, text: str) -> bytes:
        """The words of a text, lower-cased, with spaces between them."""
        if not text.isascii():
            text = " ".join(self._words(text)) if UNFAMILIAR.search(text) else SEPARATORS.sub(" ", normal(text))
        return text.encode().translate(LOWER).strip() or NOTHING

    def _words(self, text: str) -> list[str]:
        """As the tokenizer finds them."""
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]


class LearnedFeatures(Learned):
    """Features of the training documents, `name:value name:value`, as `Learned` has words; nothing is cut off."""

    has_values = True
    special: ClassVar[dict[str, int]] = {PAD: 0, UNK: 1, VALUES: VALUES_ID}
    make_tokenizer = staticmethod(feature_tokenizer)
    make_vocabulary = FeatureVocabulary

    def cut(self, texts: list[str], counts: np.ndarray) -> Cut:
        rows = [[pair for pair in map(parse_feature, text.split()) if pair[1]] or [("", 0.0)] for text in texts]
        numbers = Numbers()
        found = numbers.of([name for row in rows for name, _ in row])
        ids = Lists.of_sizes([len(row) for row in rows], found)
        values = np.array([value for row in rows for _, value in row], dtype=np.float32)
        return Cut(Tokens(ids, values), list(numbers), documents_with(ids, counts, len(numbers)))

    def final(self, tokens: Tokens) -> Tokens:
        """A feature that the vocabulary lacks is left out; the first of a document where none would be left."""
        if tokens.values is None:
            raise TypeError("features have values")
        ids, rows = self.finals[tokens.ids.values], tokens.ids.rows
        known = ids >= 0
        empty = np.bincount(rows[known], minlength=len(tokens.ids.offsets) - 1) == 0
        firsts = tokens.ids.offsets[:-1][empty]
        values = tokens.values.copy()
        ids[firsts], values[firsts], known[firsts] = self.special[UNK], 0.0, True
        return Tokens(Lists(tokens.ids.offsets, ids).chosen(known), values[known])

    def _is_token(self, name: str) -> bool:
        return name != "" and name not in self.special


def normal(text: str) -> str:
    """Lower-cased, as the tokenizer does it: Python alone writes a sigma at the end of a word in another way."""
    return unicodedata.normalize("NFKC", text).replace("\u03a3", "\u03c3").lower()


def documents_with(tokens: Lists, counts: np.ndarray, size: int) -> np.ndarray:
    """How many of the documents that count have each of `size` tokens."""
    rows = tokens.rows
    counted = counts[rows]
    pairs = distinct_pairs(rows[counted], tokens.values[counted])
    return np.bincount(pairs[1], minlength=size)


def _strings(texts: list[bytes]) -> pa.StringArray:
    """Without looking at each character once more, as pyarrow would."""
    lists = Lists.of_sizes([len(text) for text in texts], np.zeros(0))
    buffers = pa.py_buffer(lists.offsets.astype(np.int32)), pa.py_buffer(b"".join(texts))
    return pa.StringArray.from_buffers(len(texts), *buffers)
