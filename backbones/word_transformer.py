"""A pretrained encoder for documents that are words of the corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from backbones.base import Features
from backbones.long_documents import Combine
from backbones.transformer import Attention, Transformer
from datamodules.batch import Batch, LabelSpace
from datamodules.prepare.vocabulary import Vocabulary, load_pretrained
from zoo.core.errors import MANY, UserError, check_range, check_width

PIECES = 8  # tokens of a word that are kept
AROUND = 4  # special tokens before and after a text that are kept


class WordTransformer(Transformer):
    """Document vectors of a pretrained encoder, beside the words that linear engines and `Blend` read.

    The data has words of the corpus, of which the encoder reads its own tokens, without case, punctuation and words
    outside the vocabulary: choose an uncased encoder. There are no token states.

    Args:
        name: model on the Hugging Face hub, or a local folder, which is used offline.
        max_length: maximum number of the encoder's tokens of a document, or of each of its windows.
        windows: maximum number of windows that a long document is split into.
        pooling: vector of a window: the mean over all tokens, or the state of the classification token.
        combine: how the vectors of windows become that of the document: `mean`, weighted by their numbers of tokens, or
            `max`.
        pretrained: load the pretrained weights; otherwise they are random, and each word is a token.
        config: settings that override those of the model.
        attention: attention implementation, as in `Transformer`.
    """

    has_tokens = False
    pieces: Tensor  # (vocab_size, PIECES) tokens of each word, padded with -1
    around: Tensor  # (2, AROUND) special tokens before and after a text, padded with -1

    def __init__(
        self,
        space: LabelSpace,
        name: str,
        max_length: int = 128,
        windows: int = 1,
        pooling: Literal["cls", "mean"] = "mean",
        combine: Combine = "mean",
        pretrained: bool = True,
        config: dict[str, Any] | None = None,
        attention: Attention | None = None,
    ) -> None:
        check_width(max_length=max_length)
        check_range(1, MANY, windows=windows)
        if not pretrained:
            config = {"vocab_size": space.vocab_size, "pad_token_id": space.pad_id} | (config or {})
        super().__init__(replace(space, vocab_size=1), name, pretrained, config, pooling, combine, attention)
        if self.max_length is not None and max_length > self.max_length:
            raise UserError(f"`max_length={max_length}`: {name} reads at most {self.max_length:,} tokens")
        if max_length <= 2 * AROUND:
            raise UserError(f"`max_length={max_length}` leaves no room for text besides special tokens")
        self.name, self.pretrained, self.size, self.windows = name, pretrained, max_length, windows
        self.max_length, self.num_layers = None, 1  # of words, and of layers that heads can read
        pieces = torch.full((space.vocab_size, PIECES), -1, dtype=torch.int32)
        pieces[:, 0] = torch.arange(space.vocab_size) % self.encoder.get_input_embeddings().num_embeddings
        self.register_buffer("pieces", pieces)
        self.register_buffer("around", torch.full((2, AROUND), -1, dtype=torch.int32))

    @classmethod
    def own_tokenizer(cls, name: str = "", pretrained: bool = True, **others: Any) -> str | None:
        return None

    def word_embeddings(self) -> list[nn.Embedding]:
        return []  # of pieces of words

    def learn_words(self, vocabulary: Vocabulary) -> None:
        if vocabulary.has_values:
            raise UserError("WordTransformer reads texts, and the corpus has features: choose Words or Bow")
        if not self.pretrained:
            return
        own = load_pretrained(self.name, self.size)
        silent = {*vocabulary.special_ids(), vocabulary.unk_id}
        words = {number: word for word, number in vocabulary.words().items() if number not in silent}
        # A space, since byte-level tokenizers know words within a text.
        encoded = own.tokenizer.encode_batch_fast([f" {word}" for word in words.values()], add_special_tokens=False)
        self.pieces.fill_(-1)
        for number, found in zip(words, encoded, strict=True):
            ids = [i for i in found.ids if i != own.unk_id][:PIECES]
            self.pieces[number, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        template = own.tokenizer.encode(" a")
        special = template.special_tokens_mask
        before = special.index(0) if 0 in special else len(special)
        for side, ids in enumerate((template.ids[:before], template.ids[len(special) - special[::-1].index(0) :])):
            self.around[side] = -1
            self.around[side, : len(ids)] = torch.tensor(ids[:AROUND], dtype=torch.int32)

    def check_indices(self) -> None:
        size = self.encoder.get_input_embeddings().num_embeddings
        for ids in (self.pieces, self.around):
            if not -1 <= int(ids.min()) <= int(ids.max()) < size:
                raise UserError(f"the checkpoint has tokens of words beyond the {size:,} of the encoder")

    def forward(self, batch: Batch) -> Features:
        pooled = super().forward(self.translated(batch)).pooled
        none = pooled.new_zeros(len(batch), 0, self.dim)
        return Features(none, batch.mask[:, :0], pooled, (none,), batch=batch)

    def translated(self, batch: Batch) -> Batch:
        """The encoder's tokens of the words of documents, in windows of `size` tokens with special tokens each."""
        first, last = (side[side >= 0].long() for side in self.around)
        body = self.size - len(first) - len(last)
        pieces = self.pieces[batch.ids].masked_fill(~batch.mask.unsqueeze(2), -1).flatten(1)
        known = pieces >= 0
        place = known.cumsum(1) - 1
        known &= place < body * self.windows
        document, place, ids = known.nonzero()[:, 0], place[known], pieces[known].long()
        counts = known.sum(1)
        windows = (counts - 1).clamp_min(0) // body + 1
        number = torch.arange(int(windows.max()), device=ids.device)
        there = number < windows[:, None]
        ends = len(first) + (counts[:, None] - number * body).clamp(0, body)  # (docs, windows) of the text
        table = ids.new_zeros(len(batch), len(number), self.size)
        table[:, :, : len(first)] = first
        table[document, place // body, len(first) + place % body] = ids
        for offset, token in enumerate(last):
            table.scatter_(2, (ends + offset).unsqueeze(2), token.expand(*ends.shape, 1))
        inside = torch.arange(self.size, device=ids.device) < (ends + len(last)).unsqueeze(2)
        mask = (inside & there.unsqueeze(2)).flatten(1)
        mask[:, 0] = True  # a document without any token has one of id 0
        length = int(mask.any(0).nonzero().max()) + 1
        return Batch(table.flatten(1)[:, :length], mask[:, :length], batch.targets, batch.rows, window=self.size)
