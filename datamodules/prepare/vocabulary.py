"""Vocabularies that encode texts: words or features of the training set, or any Hugging Face tokenizer."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Sequence
from tokenizers.pre_tokenizers import Split, WhitespaceSplit

from datamodules.prepare.hub import load_model
from zoo.core.errors import UserError

PAD, UNK = "[PAD]", "[UNK]"
VALUES, VALUES_ID = "[VALUES]", 2  # marks a vocabulary of features
# Names used by the word vocabulary and BERT, by RoBERTa, XLNet and ALBERT, and by ModernBERT
PAD_TOKENS = (PAD, "<pad>", "<PAD>", "<|padding|>")
UNK_TOKENS = (UNK, "<unk>", "<|unknown|>")
SETTING = "`tokenizer` (or `backbone.name`, if it is the encoder's own)"

WORD = re.compile(r"[^\W_]+")  # letters and digits
TOKENIZER_WORD = Regex(r"[\p{L}\p{N}]+")


class Vocabulary:
    """Wrapper of a `tokenizers.Tokenizer` that truncates; it is serialized as one JSON text.

    Args:
        tokenizer: the tokenizer.
        max_length: maximum number of tokens of a document, or of each of its windows.
        windows: maximum number of windows. They follow one another, each with special tokens of its own; all but the
            last have `max_length` tokens.
    """

    has_values: bool = False  # whether tokens are features with values

    def __init__(self, tokenizer: Tokenizer, max_length: int, windows: int = 1) -> None:
        self.tokenizer, self.max_length, self.windows = tokenizer, max_length, windows
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise UserError(f"`max_length={max_length}` leaves no room for text besides {special} special tokens")
        own = [tokenizer.padding["pad_token"]] if tokenizer.padding else []
        self.pad_id = first_id(tokenizer, *own, *PAD_TOKENS)
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)  # applied before special tokens are added, so the end token stays
        self.size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.unk_id = first_id(tokenizer, *UNK_TOKENS)

    @classmethod
    def from_text(cls, text: str, max_length: int, windows: int = 1) -> Vocabulary:
        tokenizer = Tokenizer.from_str(text)
        kind = FeatureVocabulary if tokenizer.token_to_id(VALUES) == VALUES_ID else Vocabulary
        return kind(tokenizer, max_length, windows)

    @property
    def window(self) -> int:
        """Number of tokens of a window; 0 if documents are not split."""
        return self.max_length if self.windows > 1 else 0

    @cached_property
    def text(self) -> str:
        """Tokenizer and padding id as JSON."""
        if self.pad_id != first_id(self.tokenizer, *PAD_TOKENS):
            self.tokenizer.enable_padding(pad_id=self.pad_id, pad_token=self.tokenizer.id_to_token(self.pad_id))
        text = str(self.tokenizer.to_str())
        self.tokenizer.no_padding()
        return text

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, at least one per text; runs on all cores."""
        encoded = self.tokenizer.encode_batch_fast(texts)
        if self.windows > 1:
            several = ([e, *e.overflowing[: self.windows - 1]] for e in encoded)
            return [[i for window in each for i in window.ids] or [self.unk_id] for each in several]
        return [e.ids or [self.unk_id] for e in encoded]

    def encode_with_values(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]] | None]:
        """Return token ids, and their values if the tokens are features."""
        return self.encode(texts), None

    def special_ids(self) -> list[int]:
        """Ids of tokens that are not part of a text, such as padding, [CLS] and [SEP]."""
        added = self.tokenizer.get_added_tokens_decoder()
        return sorted({self.pad_id, *(i for i, token in added.items() if token.special)} - {self.unk_id})

    def words(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab(with_added_tokens=True))


class FeatureVocabulary(Vocabulary):
    """Vocabulary of features. A text is `name:value name:value`; a value of 1 may be left out.

    Features have no order, so texts are not truncated. Unknown features and values of 0 are dropped.
    """

    has_values = True

    def __init__(self, tokenizer: Tokenizer, max_length: int, windows: int = 1) -> None:
        super().__init__(tokenizer, max_length)
        tokenizer.no_truncation()
        self.features = {name: i for name, i in self.words().items() if i > VALUES_ID}

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self.encode_with_values(texts)[0]

    def encode_with_values(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        rows = [self._row(text) for text in texts]
        return [ids for ids, _ in rows], [values for _, values in rows]

    def _row(self, text: str) -> tuple[list[int], list[float]]:
        """Encode a text; without known features it is one unknown feature of value 0."""
        pairs = [(self.features.get(name), value) for name, value in map(parse_feature, text.split())]
        known = [(i, value) for i, value in pairs if i is not None and value]
        ids, values = zip(*known or [(self.unk_id, 0.0)], strict=True)
        return list(ids), list(values)


LARGEST = 3.4e38  # of a 32-bit float


def parse_feature(feature: str) -> tuple[str, float]:
    """Parse `name:value`, or `name` with value 1."""
    name, colon, number = feature.rpartition(":")
    if not colon:
        return feature, 1.0
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not abs(value) < LARGEST:
        raise UserError(f"{feature[:80]!r} is not a feature: expected a name, or name:value with a number")
    return name, value


def first_id(tokenizer: Tokenizer, *tokens: str) -> int:
    """Id of the first of the tokens that is in the vocabulary; 0 if none is."""
    return next((i for token in tokens if (i := tokenizer.token_to_id(token)) is not None), 0)


def word_tokenizer(words: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNK))
    tokenizer.normalizer = Sequence([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Split(TOKENIZER_WORD, "removed", invert=True)
    return tokenizer


def feature_tokenizer(names: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(names, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def load_pretrained(name: str, max_length: int, windows: int = 1) -> Vocabulary:
    """Load the tokenizer of a Hugging Face model by name or local folder."""
    from transformers import AutoTokenizer  # takes seconds to import

    def load(source: str, local_files_only: bool) -> Any:
        found = AutoTokenizer.from_pretrained(source, local_files_only=local_files_only, trust_remote_code=False)
        if set(found.get_vocab()) <= set(found.all_special_tokens):  # transformers builds an empty one without files
            raise OSError("it has no tokenizer files")
        return found

    tokenizer = load_model(name, load, "tokenizer", SETTING)
    if not tokenizer.is_fast:
        raise UserError(f"{name!r} has no fast tokenizer: choose a model with a tokenizer.json")
    backend = tokenizer.backend_tokenizer
    if tokenizer.pad_token is not None:
        backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    return Vocabulary(backend, max_length, windows)
