"""The bag of words: what linear models read, in as many dimensions as a head likes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features
from backbones.tfidf import TfIdf
from datamodules.batch import Batch, LabelSpace
from datamodules.errors import UserError


class Bow(Backbone):
    """Sum of word vectors weighted by TF-IDF, and residual blocks on it: fast, and blind to the order of words.

    Args:
        dim: width of word vectors and of the document's vector.
        blocks: residual layers on the document's vector.
        dropout: of the document's vector, and within blocks.
        word_dropout: share of a document's words that a training step does not see.
        tokens: give vectors of words as token states, for heads with label attention; this takes longer.
        min_documents: words that fewer training documents have are left out.
        sublinear: count words by the logarithm; False takes values of features as they are.
        sparse: gradients for the words of a batch alone, which takes an optimizer such as RowAdam.
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
        for name, value, low in (("dim", dim, 1), ("blocks", blocks, 0), ("min_documents", min_documents, 1)):
            if value < low:
                raise UserError(f"--model.backbone.{name}={value} is too low: the lowest is {low}")
        self.dim, self.has_tokens = dim, tokens
        self.tfidf = TfIdf(space, min_documents, sublinear)
        self.words = nn.Embedding(space.vocab_size, dim, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.05)  # at 1 the random part outweighs what few documents teach
        self.bias = nn.Parameter(torch.zeros(dim))
        self.blocks = nn.ModuleList(nn.Linear(dim, dim) for _ in range(blocks))
        self.word_dropout, self.dropout = nn.Dropout(word_dropout), nn.Dropout(dropout)

    def learn_counts(self, counts: csr_array) -> None:
        self.tfidf.learn(counts)

    def forward(self, batch: Batch) -> Features:
        ids, weights = self.tfidf(batch)
        weights = self.word_dropout(weights)
        if self.has_tokens:
            tokens, mask = self.states(*distinct(ids, weights))
            total = tokens.sum(1) / mask.sum(1, keepdim=True) ** 0.5
        else:
            tokens, mask = self.words.weight.new_zeros(len(ids), 0, self.dim), batch.mask[:, :0]
            total = self.summed(ids, weights)
        return Features(tokens, mask, self.pool(total), (tokens,))

    def summed(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of word vectors, (batch, dim); what weighs nothing is not looked up.

        Each word of the batch is looked up once: its gradient is summed there, in a table of few rows.
        """
        kept = weights != 0
        sizes = kept.sum(1)
        words, places = torch.unique(ids[kept], return_inverse=True)
        starts = sizes.cumsum(0) - sizes
        table = self.words(words)
        return F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weights[kept].to(table.dtype))

    def states(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """A state for each distinct word, its vector times a weight whose mean square is 1, and their mask."""
        mask = weights != 0
        mask[:, 0] |= ~mask.any(1)  # a document without words has one state, of zeros
        return self.words(ids) * (weights * mask.sum(1, keepdim=True) ** 0.5).unsqueeze(-1), mask

    def pool(self, total: Tensor) -> Tensor:
        state: Tensor = self.dropout((total + self.bias).relu())
        for block in self.blocks:
            state = state + self.dropout(block(state).relu())
        return state

    @torch.no_grad()
    def load_vectors(self, vectors: Tensor) -> None:
        if vectors.shape[1] != self.dim:
            raise UserError(
                f"the word vectors have {vectors.shape[1]} dimensions, the backbone {self.dim}: "
                f"set --model.backbone.dim={vectors.shape[1]}, or leave --data.vectors out"
            )
        self.words.weight.copy_(vectors)


def distinct(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The words that weigh something before all others, in as many columns as the longest document has."""
    kept = weights != 0
    order = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(int(kept.sum(1).max()), 1)]
    return ids.gather(1, order), weights.gather(1, order)
