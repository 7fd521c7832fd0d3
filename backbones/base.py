"""The backbone contract: `Features` of a batch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.dropout import Dropout
from datamodules.batch import Batch, LabelSpace
from datamodules.prepare.vocabulary import Vocabulary
from zoo.core.errors import UserError, check_low, check_range, check_width

UNSAID = {"training", "name_or_path"}  # attributes that features do not depend on


@dataclass(frozen=True)
class Features:
    """Encoded documents. `tokens` are zero on padding, where `mask` is False."""

    tokens: Tensor  # (batch, length, dim); (batch, 0, dim) from a backbone without token states
    mask: Tensor  # (batch, length) bool
    pooled: Tensor  # (batch, dim)
    layers: tuple[Tensor, ...]  # token states of all layers, not masked; layers[-1] is tokens
    vectors: tuple[Tensor, ...] = ()  # document vectors of all layers; empty if `pooled` is the only one
    batch: Batch | None = None  # the encoded batch, for heads that read words

    def states(self, layer: int) -> Tensor:
        """Token states of a layer, from 1, or -1 for the last; zeros on padding."""
        states = self.layers[layer - (layer > 0)]
        return states if states is self.tokens else states * self.mask.unsqueeze(-1)

    def vector(self, layer: int) -> Tensor:
        """Document vectors of a layer, from 1, or -1 for the last."""
        return (self.vectors or (self.pooled,))[layer - (layer > 0)]

    def take(self, documents: Tensor) -> Features:
        """Features of some documents, in the order given."""
        layers, vectors = (tuple(tensor[documents] for tensor in part) for part in (self.layers, self.vectors))
        batch = None if self.batch is None else self.batch.take(documents)
        return Features(layers[-1], self.mask[documents], self.pooled[documents], layers, vectors, batch)

    def float(self) -> Features:
        """The features in single precision; itself if they already are."""
        if self.pooled.dtype == self.tokens.dtype == torch.float32:
            return self
        layers, vectors = (tuple(tensor.float() for tensor in part) for part in (self.layers, self.vectors))
        return Features(layers[-1], self.mask, self.pooled.float(), layers, vectors, self.batch)


class Backbone(nn.Module, ABC):
    """Base class of encoders; implement `forward` and set `dim`. Padding must not change the features."""

    dim: int  # width of token states and of the pooled vector
    num_layers: int = 1
    has_tokens: bool = True
    max_length: int | None = None  # maximum number of tokens; None for no limit
    reads_counts: bool = False  # `learn_counts` is called before training
    reads_values: bool = False  # uses feature values; other backbones only see which features a document has

    @abstractmethod
    def forward(self, batch: Batch) -> Features: ...

    @classmethod
    def own_tokenizer(cls, **settings: Any) -> str | None:
        """Name or folder of the tokenizer that belongs to a backbone with these settings, if any."""
        return None

    def self_contained(self) -> dict[str, Any]:
        """Settings to override when the backbone is rebuilt from a checkpoint, so that no other files are needed."""
        return {}

    def digest(self) -> str:
        """Digest of everything that the features depend on: classes, settings and all weights."""
        found = blake2b(json.dumps(self.self_contained(), sort_keys=True, default=str).encode(), digest_size=16)
        for path, module in self.named_modules():
            public = {key: value for key, value in vars(module).items() if key not in UNSAID and key[0] != "_"}
            plain = {key: value for key, value in public.items() if isinstance(value, str | int | float | None)}
            found.update(repr((path, type(module).__qualname__, sorted(plain.items()))).encode())
        for name, value in self.state_dict().items():
            found.update(name.encode())
            if isinstance(value, Tensor):
                found.update(repr((value.dtype, value.shape)).encode())
                found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            else:
                found.update(repr(value).encode())
        return found.hexdigest()

    def word_embeddings(self) -> list[nn.Embedding]:
        """Tables that the tokens of a batch are looked up in, for explanations by gradients; empty if unknown."""
        return []

    def on_tokens(self, values: Tensor, batch: Batch) -> Tensor:
        """Values of token states (batch, n, states) as values of the tokens of the batch, (batch, n, length)."""
        return F.pad(values, (0, batch.ids.shape[1] - values.shape[2]))

    def learn_counts(self, counts: csr_array) -> None:
        """Learn from the token counts of the training documents, (documents, vocab_size)."""

    def learn_words(self, vocabulary: Vocabulary) -> None:
        """Learn the vocabulary of the corpus."""

    def load_vectors(self, vectors: Tensor) -> None:
        """Initialize the embedding with pretrained word vectors (vocab_size, width)."""
        raise UserError(f"{type(self).__name__} has no word embeddings: remove `data.vectors`")


class WordBackbone(Backbone):
    """Base class of backbones with a word embedding.

    Args:
        embed_dim: width of the word vectors.
        embed_dropout: dropout rate of the word vectors.
        freeze_embedding: do not train the word vectors.
        first: read only the first tokens of a document. Default: all.
    """

    def __init__(
        self, space: LabelSpace, embed_dim: int, embed_dropout: float, freeze_embedding: bool, first: int | None = None
    ) -> None:
        super().__init__()
        check_low(1, first=first)
        check_width(embed_dim=embed_dim)
        check_range(0, 1, embed_dropout=embed_dropout)
        self.first = first
        self.embedding = nn.Embedding(space.vocab_size, embed_dim, padding_idx=space.pad_id)
        with torch.no_grad():
            self.embedding.weight.uniform_(-1, 1)[space.pad_id] = 0
        self.embedding.weight.requires_grad = not freeze_embedding
        self.embed_dropout = Dropout(embed_dropout)

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors (batch, length, embed_dim), zero on padding."""
        words: Tensor = self.embed_dropout(self.embedding(batch.ids)) * batch.mask.unsqueeze(-1)
        return words

    def word_embeddings(self) -> list[nn.Embedding]:
        return [self.embedding]

    def load_vectors(self, vectors: Tensor) -> None:
        copy_vectors(vectors, self.embedding, "embed_dim")


@torch.no_grad()
def copy_vectors(vectors: Tensor, embedding: nn.Embedding, setting: str) -> None:
    """Copy pretrained word vectors to an embedding, whose width is `setting`."""
    width, wanted = vectors.shape[1], embedding.embedding_dim
    if width != wanted:
        raise UserError(
            f"the word vectors have {width} dimensions, the backbone has {wanted}: set `{setting}={width}`, or remove "
            "`data.vectors`"
        )
    embedding.weight.copy_(vectors)


def by_word(values: Tensor, words: Tensor, batch: Batch) -> Tensor:
    """Share the values of words (batch, n, words) among the tokens with these ids, (batch, n, length)."""
    same = (words.unsqueeze(2) == batch.ids.unsqueeze(1)) & batch.mask.unsqueeze(1)
    return values @ (same / same.sum(2, keepdim=True).clamp_min(1)).to(values.dtype)
