"""Small vocabularies and tokenizers."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from datamodules.prepare.tokens import FeatureTokenizer, WordTokenizer


def build_words(texts, max_words, max_length, kind=WordTokenizer):
    reading = kind(max_words, max_length)
    reading.index(reading.tokenize(texts, np.ones(len(texts), dtype=bool)))
    return reading.vocabulary()


def build_features(texts, max_words, max_length):
    return build_words(texts, max_words, max_length, FeatureTokenizer)


def save_tokenizer(folder, words, pad="[PAD]", template="[CLS] $A [SEP]", model=WordLevel, unk_token="[UNK]", **names):
    """Save a fast tokenizer with this vocabulary and the special tokens of `template`; return the folder's name."""
    from transformers import PreTrainedTokenizerFast

    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(model(ids, unk_token=unk_token))
    tokenizer.pre_tokenizer = Whitespace()
    special = [(word, ids[word]) for word in template.replace(":2", "").split() if word != "$A"]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    names = {"pad_token": pad, "unk_token": unk_token} | names
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return str(folder)
