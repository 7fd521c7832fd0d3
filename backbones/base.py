"""What every backbone hands to every head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from datamodules.batch import Batch, LabelSpace
from datamodules.errors import UserError


@dataclass(frozen=True)
class Features:
    """Encoded documents. Padding positions of `tokens` hold zeros, and `mask` is False there."""

    tokens: Tensor  # (batch, length, dim); (batch, 0, dim) from a backbone without token states
    mask: Tensor  # (batch, length) bool
    pooled: Tensor  # (batch, dim)
    layers: tuple[Tensor, ...]  # of every layer, for `states` to read; layers[-1] is tokens
    vectors: tuple[Tensor, ...] = ()  # of every layer, each like `pooled`; empty where that is the only one
    batch: Batch | None = None  # what it was made from, for heads that read words

    def states(self, layer: int) -> Tensor:
        """Token states of a layer, the first being 1 and the last -1; zeros on padding."""
        found = self.layers[layer - (layer > 0)]
        return found if found is self.tokens else found * self.mask.unsqueeze(-1)

    def vector(self, layer: int) -> Tensor:
        """The document's vector at a layer, the first being 1 and the last -1."""
        return (self.vectors or (self.pooled,))[layer - (layer > 0)]

    def float(self) -> Features:
        """In single precision; the same object where it is that already."""
        if self.pooled.dtype == self.tokens.dtype == torch.float32:
            return self
        layers, vectors = (tuple(tensor.float() for tensor in part) for part in (self.layers, self.vectors))
        return Features(layers[-1], self.mask, self.pooled.float(), layers, vectors, self.batch)


class Backbone(nn.Module, ABC):
    """Turns token ids into features. Appending padding to a batch changes nothing."""

    dim: int  # width of token states and of the pooled vector
    num_layers: int = 1
    has_tokens: bool = True
    max_length: int | None = None  # tokens that it can read at most
    reads_counts: bool = False  # True: `learn_counts` is called before training
    reads_values: bool = False  # True: knows values of features; others see only which of them a document has

    @abstractmethod
    def forward(self, batch: Batch) -> Features: ...

    @classmethod
    def own_tokenizer(cls, **settings: Any) -> str | None:
        """Name or folder of the tokenizer that a backbone of these settings belongs to, if any."""
        return None

    def self_contained(self) -> dict[str, Any]:
        """Settings that, put over its own, build it again from a checkpoint, without other files."""
        return {}

    def learn_counts(self, counts: csr_array) -> None:
        """Take in how often each training document has each token, (documents, vocab_size)."""

    def load_vectors(self, vectors: Tensor) -> None:
        """Start from pretrained word vectors (vocab_size, width)."""
        raise UserError(f"{type(self).__name__} has no word embeddings of its own: leave --data.vectors out")


class WordBackbone(Backbone):
    """A backbone that begins with a table of word vectors; `first` bounds the tokens that it reads of a document."""

    def __init__(
        self, space: LabelSpace, embed_dim: int, embed_dropout: float, freeze_embedding: bool, first: int | None = None
    ) -> None:
        super().__init__()
        if first is not None and first < 1:
            raise UserError(f"--model.backbone.first={first} is too low: the lowest is 1")
        self.first = first
        self.embedding = nn.Embedding(space.vocab_size, embed_dim, padding_idx=space.pad_id)
        with torch.no_grad():
            self.embedding.weight.uniform_(-1, 1)[space.pad_id] = 0
        self.embedding.weight.requires_grad = not freeze_embedding
        self.embed_dropout = nn.Dropout(embed_dropout)

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors (batch, length, embed_dim), zero on padding."""
        words: Tensor = self.embed_dropout(self.embedding(batch.ids)) * batch.mask.unsqueeze(-1)
        return words

    @torch.no_grad()
    def load_vectors(self, vectors: Tensor) -> None:
        assert len(vectors) == self.embedding.num_embeddings
        if vectors.shape[1] != self.embedding.embedding_dim:
            raise UserError(
                f"the word vectors have {vectors.shape[1]} dimensions, the backbone {self.embedding.embedding_dim}: "
                f"set --model.backbone.embed_dim={vectors.shape[1]}"
            )
        self.embedding.weight.copy_(vectors)
