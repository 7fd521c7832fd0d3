"""Bag-of-words encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features, by_word, copy_vectors
from backbones.dropout import Dropout
from backbones.tfidf import TfIdf
from datamodules.batch import Batch, LabelSpace
from zoo.core.errors import MANY, check_range, check_width
from zoo.core.exporting import is_exporting


class Bow(Backbone):
    """Sum of word vectors weighted by TF-IDF, followed by residual blocks; fast, but ignores word order.

    Args:
        dim: width of word vectors and of the document's vector.
        blocks: number of residual blocks.
        dropout: dropout rate of the document's vector, and within blocks.
        word_dropout: dropout rate of whole words.
        tokens: provide word vectors as token states, for heads with label attention; slower.
        min_documents: words in fewer training documents are dropped.
        sublinear: use 1 + ln(count); False uses counts, or feature values, as they are.
        sparse: sparse gradients of the word vectors, which need an optimizer such as RowAdam.
    """

    reads_counts = True
    reads_values = True

    def __init__(
        self,
        space: LabelSpace,
        dim: int = 512,
        blocks: int = 0,
        dropout: float = 0.2,
        word_dropout: float = 0.0,
        tokens: bool = False,
        min_documents: int = 2,
        sublinear: bool = True,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        check_width(dim=dim)
        check_range(0, MANY, blocks=blocks)
        check_range(0, 1, dropout=dropout, word_dropout=word_dropout)
        self.dim, self.has_tokens = dim, tokens
        self.tfidf = TfIdf(space, min_documents, sublinear)
        self.words = nn.Embedding(space.vocab_size, dim, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.05)  # at 1, noise outweighs what is learned from few documents
        self.bias = nn.Parameter(torch.zeros(dim))
        self.blocks = nn.ModuleList(nn.Linear(dim, dim) for _ in range(blocks))
        self.word_dropout, self.dropout = Dropout(word_dropout), Dropout(dropout)

    def learn_counts(self, counts: csr_array) -> None:
        self.tfidf.learn(counts)

    def forward(self, batch: Batch) -> Features:
        ids, weights = self.tfidf(batch)
        weights = self.word_dropout(weights)
        if self.has_tokens:
            tokens, mask = self.states(*distinct(ids, weights))
            total = tokens.sum(1) / mask.sum(1, keepdim=True) ** 0.5
        else:
            tokens, mask = self.words.weight.new_zeros(ids.shape[0], 0, self.dim), batch.mask[:, :0]
            total = self.summed(ids, weights)
        return Features(tokens, mask, self.pool(total), (tokens,))

    def summed(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of word vectors, (batch, dim).

        Each distinct word of the batch is looked up once, so that gradients are summed in a small table.
        """
        if is_exporting():
            return torch.einsum("bt,btd->bd", weights, self.words(ids))
        kept = weights != 0
        sizes = kept.sum(1)
        words, places = torch.unique(ids[kept], return_inverse=True)
        starts = sizes.cumsum(0) - sizes
        table = self.words(words)
        return F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weights[kept].to(table.dtype))

    def states(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """States of the distinct words, which are vectors times weights with mean square 1, and their mask."""
        mask = weights != 0
        mask[:, 0] |= ~mask.any(1)  # a document without words has one zero state
        return self.words(ids) * (weights * mask.sum(1, keepdim=True) ** 0.5).unsqueeze(-1), mask

    def pool(self, total: Tensor) -> Tensor:
        state: Tensor = self.dropout((total + self.bias).relu())
        for block in self.blocks:
            state = state + self.dropout(block(state).relu())
        return state

    def word_embeddings(self) -> list[nn.Embedding]:
        return [self.words]

    def on_tokens(self, values: Tensor, batch: Batch) -> Tensor:
        words, weights = distinct(*self.tfidf(batch))
        return by_word(values * (weights != 0).unsqueeze(1), words, batch)

    def load_vectors(self, vectors: Tensor) -> None:
        copy_vectors(vectors, self.words, "dim")


def distinct(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Move words with nonzero weights to the front, and trim to the longest document."""
    kept = weights != 0
    order = kept.int().argsort(dim=1, descending=True, stable=True)
    if not is_exporting():
        order = order[:, : max(int(kept.sum(1).max()), 1)]
    return ids.gather(1, order), weights.gather(1, order)
