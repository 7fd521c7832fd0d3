"""The convolutional encoder of XML-CNN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features, WordBackbone
from backbones.dropout import Dropout
from datamodules.batch import Batch, LabelSpace
from zoo.core.errors import MANY, WIDEST, UserError, check_range


class CNN(WordBackbone):
    """XML-CNN: convolutions of several widths, dynamic max pooling, and a bottleneck layer.

    Liu et al. 2017, "Deep Learning for Extreme Multi-label Text Classification"
    (https://doi.org/10.1145/3077136.3080834).

    Args:
        embed_dim: width of the word vectors.
        dim: width of token states, shared evenly by the filter widths, and of the bottleneck.
        widths: filter widths in words.
        chunks: parts of a document that are max-pooled.
        embed_dropout: dropout rate of the word vectors.
        dropout: dropout rate of the document's vector.
        freeze_embedding: do not train the word vectors.
        first: read only the first tokens of a document, if another part of the model reads more. Default: all.
    """

    def __init__(
        self,
        space: LabelSpace,
        embed_dim: int = 300,
        dim: int = 512,
        widths: Sequence[int] = (2, 4, 8),
        chunks: int = 8,
        embed_dropout: float = 0.2,
        dropout: float = 0.5,
        freeze_embedding: bool = False,
        first: int | None = None,
    ) -> None:
        if not widths:
            raise UserError("`widths=[]` is empty: give the width of at least one filter")
        for width in widths:
            check_range(1, MANY, widths=width)
        check_range(len(widths), WIDEST, dim=dim)  # each width has a filter at least
        check_range(1, MANY, chunks=chunks)
        check_range(0, 1, dropout=dropout)
        super().__init__(space, embed_dim, embed_dropout, freeze_embedding, first)
        self.dim, self.chunks = dim, chunks
        filters = [dim // len(widths) + (i < dim % len(widths)) for i in range(len(widths))]
        self.convs = nn.ModuleList(nn.Conv1d(embed_dim, n, w) for n, w in zip(filters, widths, strict=True))
        self.padding = [((width - 1) // 2, width // 2) for width in widths]  # keeps the length
        self.bottleneck = nn.Linear(dim * chunks, dim)
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> Features:
        batch = batch.first(self.first)
        words = self.embed(batch).mT  # (batch, embed_dim, length)
        views = [conv(F.pad(words, padding)) for conv, padding in zip(self.convs, self.padding, strict=True)]
        states = torch.cat(views, 1).mT.relu()
        tokens = states * batch.mask.unsqueeze(-1)
        chunks = dynamic_max_pool(tokens, batch.mask, self.chunks)
        pooled = self.dropout(self.bottleneck(chunks.flatten(1)).relu())
        return Features(tokens, batch.mask, pooled, (tokens,))


def dynamic_max_pool(tokens: Tensor, mask: Tensor, chunks: int) -> Tensor:
    """Maximum within each of `chunks` near-equal parts of every document's own length, (batch, chunks, dim).

    Parts without tokens, in very short documents, are zero: states are not negative after the ReLU.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    part = place * chunks // mask.sum(1, keepdim=True).clamp_min(1)  # (batch, length)
    part = part.clamp_max(chunks - 1).unsqueeze(-1).expand_as(tokens)  # padding, all zeros, is in the last part
    empty = tokens.new_zeros(tokens.shape[0], chunks, tokens.shape[-1])
    return empty.scatter_reduce(1, part, tokens, "amax")
