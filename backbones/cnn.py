"""The convolutional encoder of XML-CNN (Liu et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features, WordBackbone
from datamodules.batch import Batch, LabelSpace


class CNN(WordBackbone):
    """XML-CNN: convolutions of several widths, dynamic max pooling into chunks, a bottleneck layer.

    Args:
        first: read only so many tokens of a document, from its beginning, where another part reads more of them.
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
        super().__init__(space, embed_dim, embed_dropout, freeze_embedding, first)
        self.dim, self.chunks = dim, chunks
        # The filters share `dim` evenly, so that token states and the bottleneck are equally wide.
        filters = [dim // len(widths) + (i < dim % len(widths)) for i in range(len(widths))]
        self.convs = nn.ModuleList(nn.Conv1d(embed_dim, n, w) for n, w in zip(filters, widths, strict=True))
        self.around = [((width - 1) // 2, width // 2) for width in widths]  # zeros that keep the length
        self.bottleneck = nn.Linear(dim * chunks, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> Features:
        batch = batch.first(self.first)
        words = self.embed(batch).mT  # (batch, embed_dim, length)
        views = [conv(F.pad(words, around)) for conv, around in zip(self.convs, self.around, strict=True)]
        states = torch.cat(views, 1).mT.relu()
        tokens = states * batch.mask.unsqueeze(-1)
        chunks = dynamic_max_pool(tokens, batch.mask, self.chunks)
        pooled = self.dropout(self.bottleneck(chunks.flatten(1)).relu())
        return Features(tokens, batch.mask, pooled, (tokens,))


def dynamic_max_pool(tokens: Tensor, mask: Tensor, chunks: int) -> Tensor:
    """Maximum within each of `chunks` near-equal parts of every document's own length, (batch, chunks, dim).

    States are not negative (ReLU), so a part that holds no token, in a very short document, gives zero.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    part = place * chunks // mask.sum(1, keepdim=True).clamp_min(1)  # (batch, length)
    part = part.clamp_max(chunks - 1).unsqueeze(-1).expand_as(tokens)  # padding is zero: harmless in the last part
    empty = tokens.new_zeros(len(tokens), chunks, tokens.shape[-1])
    return empty.scatter_reduce(1, part, tokens, "amax")
