"""AttentionXML without its tree: every label attended, one scoring network for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from heads.base import check_low
from heads.blockwise import Tensors
from heads.label_attention import LabelwiseHead, attend


class AttentionXML(LabelwiseHead):
    """Label attention, then fully connected layers that all labels share.

    After You et al. 2019, "AttentionXML: Label Tree-based Attention-Aware Deep Model for High-Performance Extreme
    Multi-Label Text Classification", the form for label sets that need no tree.

    Args:
        hidden: widths of the layers before the last; the paper has [256], or [512, 256] for large label sets.
        negatives: other labels than those of the batch to train on, drawn anew for each; all by default.
    """

    def __init__(
        self, dim: int, space: LabelSpace, hidden: Sequence[int] = (256,), negatives: int | None = None
    ) -> None:
        super().__init__(dim, space, negatives)
        if not hidden:
            raise UserError("--model.head.hidden=[]: give the width of at least one layer")
        check_low(1, hidden=min(hidden))
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(space.num_labels, dim)))
        self.first = nn.Linear(dim, hidden[0])
        widths = [*hidden, 1]
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        for layer in (self.first, *self.rest):
            nn.init.xavier_uniform_(layer.weight)

    def per_token(self, features: Features) -> Tensors:
        # Attention is linear in the tokens: the first layer goes before it, where there is less to compute.
        return features.tokens, features.tokens @ self.first.weight.T

    def queries(self) -> nn.Parameter:
        return self.query

    def per_label(self) -> Tensors:
        return (self.query,)

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        x = attend(labels[0], tokens[0], tokens[1], mask) + self.first.bias
        for layer in self.rest:
            x = layer(x.relu())
        return x.squeeze(-1)
