"""Text to token ids: words or features of the training set, or any Hugging Face tokenizer."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Sequence
from tokenizers.pre_tokenizers import Split, WhitespaceSplit

from datamodules.errors import UserError
from datamodules.hub import load_model

PAD, UNK = "[PAD]", "[UNK]"
VALUES, VALUES_ID = "[VALUES]", 2  # in a vocabulary of features: what tells it from one of words
# What the encoder families call them: word level and BERT, RoBERTa and XLNet and ALBERT, ModernBERT
PAD_TOKENS = (PAD, "<pad>", "<PAD>", "<|padding|>")
UNK_TOKENS = (UNK, "<unk>", "<|unknown|>")
OPTION = "--data.tokenizer or, where it is the encoder's own, --model.backbone.name"

WORD = re.compile(r"[^\W_]+")  # a word is a run of letters and digits
TOKENIZER_WORD = Regex(r"[\p{L}\p{N}]+")


class Vocabulary:
    """A `tokenizers.Tokenizer` that truncates, with its padding id; one JSON text holds all of it."""

    has_values: bool = False  # True: what it encodes are features, each with a value

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise UserError(f"--data.max_length={max_length} leaves no room beside {special} special tokens")
        own = [tokenizer.padding["pad_token"]] if tokenizer.padding else []
        self.pad_id = first_id(tokenizer, *own, *PAD_TOKENS)
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)  # before the special tokens are added: the end token stays
        self.size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.unk_id = first_id(tokenizer, *UNK_TOKENS)

    @classmethod
    def from_text(cls, text: str, max_length: int) -> Vocabulary:
        tokenizer = Tokenizer.from_str(text)
        kind = FeatureVocabulary if tokenizer.token_to_id(VALUES) == VALUES_ID else Vocabulary
        return kind(tokenizer, max_length)

    @cached_property
    def text(self) -> str:
        """All of it, as JSON."""
        if self.pad_id != first_id(self.tokenizer, *PAD_TOKENS):
            self.tokenizer.enable_padding(pad_id=self.pad_id, pad_token=self.tokenizer.id_to_token(self.pad_id))
        text = str(self.tokenizer.to_str())
        self.tokenizer.no_padding()
        return text

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, never empty; runs on all cores."""
        return [e.ids or [self.unk_id] for e in self.tokenizer.encode_batch_fast(texts)]

    def encode_with_values(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]] | None]:
        """Token ids, and as many values where the tokens are features."""
        return self.encode(texts), None

    def special_ids(self) -> list[int]:
        """Tokens that stand for no part of a text, such as the first and the last of it for an encoder."""
        added = self.tokenizer.get_added_tokens_decoder()
        return sorted({self.pad_id, *(i for i, token in added.items() if token.special)} - {self.unk_id})

    def words(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab(with_added_tokens=True))


class FeatureVocabulary(Vocabulary):
    """Names of features in the place of words; a text is `name:value name:value`, a value of 1 may be left out.

    It is a bag, so nothing is cut off. Features that it does not know, and values of 0, are left out.
    """

    has_values = True

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        super().__init__(tokenizer, max_length)
        tokenizer.no_truncation()
        self.features = {name: i for name, i in self.words().items() if i > VALUES_ID}

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self.encode_with_values(texts)[0]

    def encode_with_values(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        rows = [self._row(text) for text in texts]
        return [ids for ids, _ in rows], [values for _, values in rows]

    def _row(self, text: str) -> tuple[list[int], list[float]]:
        """A row that has nothing is one unknown feature of value 0, which weighs nothing."""
        pairs = [(self.features.get(name), value) for name, value in map(parse_feature, text.split())]
        known = [(i, value) for i, value in pairs if i is not None and value]
        ids, values = zip(*known or [(self.unk_id, 0.0)], strict=True)
        return list(ids), list(values)


LARGEST = 3.4e38  # what a float of 32 bits holds


def parse_feature(feature: str) -> tuple[str, float]:
    """Name and value of `name:value`."""
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
    """The id of the first of the tokens that it knows, else 0."""
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


def load_pretrained(name: str, max_length: int) -> Vocabulary:
    """The tokenizer of a Hugging Face model, by name or local folder."""
    from transformers import AutoTokenizer  # takes seconds to import

    def load(source: str, local_files_only: bool) -> Any:
        found = AutoTokenizer.from_pretrained(source, local_files_only=local_files_only, trust_remote_code=False)
        if set(found.get_vocab()) <= set(found.all_special_tokens):  # made up where there are no files
            raise OSError("it has no files of a tokenizer")
        return found

    tokenizer = load_model(name, load, "tokenizer", OPTION)
    if not tokenizer.is_fast:
        raise UserError(f"{name!r} has no fast tokenizer: choose a model that has a tokenizer.json")
    backend = tokenizer.backend_tokenizer
    if tokenizer.pad_token is not None:
        backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    return Vocabulary(backend, max_length)
