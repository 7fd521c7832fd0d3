"""Text to token ids: a word-level vocabulary of the training set, or any Hugging Face tokenizer."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Sequence
from tokenizers.pre_tokenizers import Split

from datamodules.errors import UserError
from datamodules.hub import load_model

PAD, UNK = "[PAD]", "[UNK]"
# What the encoder families call them: word level and BERT, RoBERTa and XLNet and ALBERT, ModernBERT
PAD_TOKENS = (PAD, "<pad>", "<PAD>", "<|padding|>")
UNK_TOKENS = (UNK, "<unk>", "<|unknown|>")
OPTION = "--data.tokenizer or, where it is the encoder's own, --model.backbone.name"

# A word is a run of letters and digits. The two patterns match the same words (a test compares them): Python's counts
# five times as fast as the tokenizer splits, the tokenizer's is what a checkpoint carries.
WORD = re.compile(r"[^\W_]+")
TOKENIZER_WORD = Regex(r"[\p{L}\p{N}]+")


class Vocabulary:
    """A `tokenizers.Tokenizer` that truncates, with its padding id; one JSON text holds all of it."""

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
        return cls(Tokenizer.from_str(text), max_length)

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

    def words(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab(with_added_tokens=True))


def first_id(tokenizer: Tokenizer, *tokens: str) -> int:
    """The id of the first of the tokens that it knows, else 0."""
    return next((i for token in tokens if (i := tokenizer.token_to_id(token)) is not None), 0)


def build_words(texts: Iterable[str], max_words: int, max_length: int) -> Vocabulary:
    """Lower-cased words by falling document frequency (ties by alphabet); PAD is 0, UNK is 1."""
    documents = Counter[str]()
    for text in texts:
        # Python alone writes a sigma at the end of a word in another way: lower-case it first
        normal = unicodedata.normalize("NFKC", text).replace("\u03a3", "\u03c3").lower()
        documents.update(set(WORD.findall(normal)))
    ranked = sorted(documents, key=lambda word: (-documents[word], word))[: max(max_words - 2, 0)]
    tokenizer = Tokenizer(WordLevel({PAD: 0, UNK: 1} | {w: i for i, w in enumerate(ranked, 2)}, unk_token=UNK))
    tokenizer.normalizer = Sequence([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Split(TOKENIZER_WORD, "removed", invert=True)
    return Vocabulary(tokenizer, max_length)


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
