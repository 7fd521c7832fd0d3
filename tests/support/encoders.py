"""Tiny random encoders of every family, and pretrained folders in the format of the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

from backbones import Transformer
from datamodules.batch import Batch
from tests.support.documents import label_space, random_batch

PAD, VOCABULARY, LAYERS, LENGTHS = 1, 40, 3, [7, 3, 1]
SPACE = label_space([3, 2], 5, vocab_size=VOCABULARY, pad_id=PAD)
SIZES = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
V3 = {"position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True, "type_vocab_size": 0}
BERT = SIZES | NO_DROPOUT | {"max_position_embeddings": 64}
FAMILIES = {
    "bert": BERT,  # and MiniLM
    "roberta": BERT | {"max_position_embeddings": 64 + PAD + 1},
    "distilbert": {"dim": 16, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64}
    | {"dropout": 0.0, "attention_dropout": 0.0},
    "xlnet": {"d_model": 16, "n_layer": LAYERS, "n_head": 2, "d_inner": 24, "dropout": 0.0},
    "deberta": BERT | RELATIVE,
    "deberta-v2": BERT | RELATIVE | V3,
    "modernbert": SIZES | {"local_attention": 4, "layer_types": ["full_attention", *2 * ["sliding_attention"]]},
}


def encoder(kind="bert", seed=0, space=SPACE, config=None, **settings) -> Transformer:
    """An encoder with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return Transformer(space, kind, False, FAMILIES[kind] | (config or {}), **settings).eval()


def documents(columns=0, filler=PAD) -> Batch:
    """Random documents of LENGTHS tokens; padding holds `filler`."""
    return random_batch(LENGTHS, VOCABULARY, columns, seed=1, lowest=2, pad_id=filler)


def save_bert(folder: Path, texts: list[str], **config) -> Path:
    """Save a random BERT and a WordPiece tokenizer trained on these texts."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.train_from_iterator(texts, WordPieceTrainer(vocab_size=200, special_tokens=list(names.values())))
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = BERT | {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 128} | config
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    return folder
