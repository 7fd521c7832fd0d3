"""Tokenization in a single pass over a corpus.

The vocabulary is not known before the end of the pass, so words get provisional ids, in order of appearance. When all
words are counted, `remap` replaces these by the ids of the vocabulary.
"""

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

from datamodules.prepare.vocabulary import (
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
from zoo.core.ragged import Lists, distinct_pairs

NO_WORDS = b"_"  # placeholder for a document without words: no word contains it
# Latin, Greek and Cyrillic letters and punctuation, which Python splits exactly like the tokenizer (tested), but ten
# times faster. Texts with any other character are split by the tokenizer itself.
UNFAMILIAR = re.compile("[^\0-\u024f\u0370-\u04ff\u2010-\u205e\u20ac]")
SEPARATORS = re.compile(r"[^\w\0-\x7f]+")  # non-ASCII characters between words
ASCII = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128)).encode()
LOWER = ASCII + bytes(range(128, 256))  # translation table for UTF-8 bytes


@dataclass(frozen=True)
class Tokens:
    """Token ids of several documents, and their values if the tokens are features."""

    ids: Lists
    values: np.ndarray | None = None


@dataclass(frozen=True)
class TokenizedChunk:
    """Tokens of several documents. An id is an index into `names`.

    Attributes:
        tokens: token ids.
        names: distinct tokens of the chunk.
        documents: number of counted documents with each token, (names,).
    """

    tokens: Tokens
    names: list[str]
    documents: np.ndarray


class NameIndex(dict[str, int]):
    """Ids of names, assigned in order of the first look-up."""

    def __missing__(self, name: str) -> int:
        index = self[name] = len(self)
        return index

    def lookup(self, names: list[str]) -> np.ndarray:
        return np.fromiter(map(self.__getitem__, names), np.int32, len(names))


class CorpusTokenizer(Protocol):
    """Tokenizer that may build its vocabulary during a single pass over the corpus."""

    has_values: bool
    has_counts: bool  # whether tokens are counted; False for features with other values, such as weights

    def tokenize(self, texts: list[str], counted: np.ndarray) -> TokenizedChunk:
        """Tokenize texts; thread-safe. The mask `counted` selects the texts that the vocabulary is built from."""

    def index(self, chunk: TokenizedChunk) -> Tokens:
        """Assign provisional token ids; call it in the order of the texts."""

    def vocabulary(self) -> Vocabulary:
        """Build the vocabulary at the end of the pass."""

    def remap(self, tokens: Tokens) -> Tokens:
        """Replace provisional ids by those of the vocabulary."""

    def informative(self, tokens: Tokens) -> np.ndarray:
        """Mask of documents, given as ids of the vocabulary, with any token that is known and not special."""


class PretrainedTokenizer:
    """Corpus tokenizer with the fixed vocabulary of a pretrained model."""

    has_values, has_counts = False, True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def tokenize(self, texts: list[str], counted: np.ndarray) -> TokenizedChunk:
        rows = self._vocabulary.encode(texts)
        ids = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
        tokens = Tokens(Lists.of_sizes([len(row) for row in rows], ids))
        return TokenizedChunk(tokens, [], np.zeros(0, dtype=np.int64))

    def index(self, chunk: TokenizedChunk) -> Tokens:
        return chunk.tokens

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def remap(self, tokens: Tokens) -> Tokens:
        return tokens

    def informative(self, tokens: Tokens) -> np.ndarray:
        uninformative = [*self._vocabulary.special_ids(), self._vocabulary.unk_id]
        return any_in_row(tokens.ids, ~np.isin(tokens.ids.values, uninformative))


class WordTokenizer:
    """Corpus tokenizer with the words of the training documents, by decreasing document frequency.

    Args:
        max_words: maximum size of the vocabulary, special tokens included.
        max_length: maximum number of tokens of a window; the rest is truncated.
        windows: maximum number of windows of a document.
    """

    has_values, has_counts = False, True
    special: ClassVar[dict[str, int]] = {PAD: 0, UNK: 1}
    make_tokenizer: Callable[[dict[str, int]], Tokenizer] = staticmethod(word_tokenizer)
    make_vocabulary = Vocabulary

    def __init__(self, max_words: int, max_length: int, windows: int = 1) -> None:
        self.max_words, self.max_length, self.windows = max_words, max_length, windows
        self.names = NameIndex()
        self.documents = np.zeros(1024, dtype=np.int64)  # document frequencies, with spare capacity
        self.tokenizer = self.make_tokenizer(self.special)

    def tokenize(self, texts: list[str], counted: np.ndarray) -> TokenizedChunk:
        words = pc.ascii_split_whitespace(_string_array([self._spaced(text) for text in texts]))
        coded = words.flatten().dictionary_encode()
        ids, names = Lists(words.offsets.to_numpy(), coded.indices.to_numpy()), coded.dictionary.to_pylist()
        tokens = Tokens(ids.chosen(ids.places < self.max_length * self.windows))
        return TokenizedChunk(tokens, names, document_frequencies(ids, counted, len(names)))

    def index(self, chunk: TokenizedChunk) -> Tokens:
        indices = self.names.lookup(chunk.names)
        while len(self.documents) < len(self.names):
            self.documents = np.concatenate([self.documents, np.zeros_like(self.documents)])
        self.documents[indices] += chunk.documents
        ids = chunk.tokens.ids
        return replace(chunk.tokens, ids=Lists(ids.offsets, indices[ids.values]))

    def vocabulary(self) -> Vocabulary:
        documents = self.documents[: len(self.names)].tolist()
        counted = {name: documents[i] for name, i in self.names.items() if documents[i] and self._is_token(name)}
        ranked = sorted(counted, key=lambda name: (-counted[name], name))[: max(self.max_words - len(self.special), 0)]
        tokens = self.special | {name: i for i, name in enumerate(ranked, len(self.special))}
        self.final_ids = np.full(len(self.names), -1, dtype=np.int32)  # -1 for tokens outside the vocabulary
        self.final_ids[[self.names[name] for name in ranked]] = np.arange(len(self.special), len(tokens))
        return self.make_vocabulary(self.make_tokenizer(tokens), self.max_length, self.windows)

    def remap(self, tokens: Tokens) -> Tokens:
        ids = self.final_ids[tokens.ids.values]
        return Tokens(Lists(tokens.ids.offsets, np.where(ids < 0, self.special[UNK], ids).astype(np.int32)))

    def informative(self, tokens: Tokens) -> np.ndarray:
        return any_in_row(tokens.ids, tokens.ids.values >= len(self.special))

    def _is_token(self, name: str) -> bool:
        return name != NO_WORDS.decode()

    def _spaced(self, text: str) -> bytes:
        """Lower-cased words of a text, separated by spaces."""
        if not text.isascii():
            text = " ".join(self._words(text)) if UNFAMILIAR.search(text) else SEPARATORS.sub(" ", normalize(text))
        return text.encode().translate(LOWER).strip() or NO_WORDS

    def _words(self, text: str) -> list[str]:
        """Split a text with the tokenizer itself."""
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]


class FeatureTokenizer(WordTokenizer):
    """Corpus tokenizer for texts `name:value name:value`. Features have no order, so documents are not truncated."""

    has_values = True
    special: ClassVar[dict[str, int]] = {PAD: 0, UNK: 1, VALUES: VALUES_ID}
    make_tokenizer = staticmethod(feature_tokenizer)
    make_vocabulary = FeatureVocabulary

    def tokenize(self, texts: list[str], counted: np.ndarray) -> TokenizedChunk:
        rows = [[pair for pair in map(parse_feature, text.split()) if pair[1]] or [("", 0.0)] for text in texts]
        names = NameIndex()
        found = names.lookup([name for row in rows for name, _ in row])
        ids = Lists.of_sizes([len(row) for row in rows], found)
        values = np.array([value for row in rows for _, value in row], dtype=np.float32)
        if self.has_counts and (values != np.rint(values)).any():
            self.has_counts = False
        return TokenizedChunk(Tokens(ids, values), list(names), document_frequencies(ids, counted, len(names)))

    def remap(self, tokens: Tokens) -> Tokens:
        """Drop unknown features. A document with unknown features only keeps one, with value 0."""
        if tokens.values is None:
            raise TypeError("features have values")
        ids, rows = self.final_ids[tokens.ids.values], tokens.ids.rows
        known = ids >= 0
        empty = np.bincount(rows[known], minlength=len(tokens.ids.offsets) - 1) == 0
        firsts = tokens.ids.offsets[:-1][empty]
        values = tokens.values.copy()
        ids[firsts], values[firsts], known[firsts] = self.special[UNK], 0.0, True
        return Tokens(Lists(tokens.ids.offsets, ids).chosen(known), values[known])

    def _is_token(self, name: str) -> bool:
        return name != "" and name not in self.special


def any_in_row(lists: Lists, mask: np.ndarray) -> np.ndarray:
    """Whether the mask is True for any value of each list."""
    before = np.concatenate([[0], mask.cumsum()])
    any_true: np.ndarray = np.diff(before[lists.offsets]) > 0
    return any_true


def normalize(text: str) -> str:
    """Normalize and lower-case like the tokenizer, which, unlike Python, has no special case for a final sigma."""
    return unicodedata.normalize("NFKC", text).replace("\u03a3", "\u03c3").lower()


def document_frequencies(tokens: Lists, counted: np.ndarray, size: int) -> np.ndarray:
    """Number of documents of the mask `counted` that contain each of `size` tokens."""
    rows = tokens.rows
    kept = counted[rows]
    pairs = distinct_pairs(rows[kept], tokens.values[kept])
    return np.bincount(pairs[1], minlength=size)


def _string_array(texts: list[bytes]) -> pa.StringArray:
    """Build an Arrow array from UTF-8 without validating it again."""
    lists = Lists.of_sizes([len(text) for text in texts], np.zeros(0))
    buffers = pa.py_buffer(lists.offsets.astype(np.int32)), pa.py_buffer(b"".join(texts))
    return pa.StringArray.from_buffers(len(texts), *buffers)
