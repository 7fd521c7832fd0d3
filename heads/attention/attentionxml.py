"""AttentionXML without its tree: label attention and one scoring network for all labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.attention.blockwise import Tensors
from heads.attention.label_attention import LabelwiseHead, attend
from zoo.core.errors import UserError, check_width


class SharedNetwork(nn.Module):
    """Mix-in with fully connected layers, shared by all labels or nodes, that score the attended vectors."""

    first: nn.Linear
    rest: nn.ModuleList

    def make_network(self, dim: int, hidden: Sequence[int]) -> None:
        self.first = nn.Linear(dim, hidden[0])
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([*hidden, 1]))
        for layer in (self.first, *self.rest):
            nn.init.xavier_uniform_(layer.weight)

    def keys_and_values(self, tokens: Tensor) -> Tensors:
        # Attention is linear in the tokens: applying the first layer to them is cheaper.
        return tokens, tokens @ self.first.weight.T

    def network(self, queries: Tensor, tokens: Tensors, mask: Tensor | None) -> Tensor:
        x = attend(queries, tokens[0], tokens[1], mask) + self.first.bias
        for layer in self.rest:
            x = layer(x.relu())
        return x.squeeze(-1)


def check_hidden(hidden: Sequence[int]) -> None:
    if not hidden:
        raise UserError("`hidden=[]` is empty: give the width of at least one layer")
    for width in hidden:
        check_width(hidden=width)


class AttentionXML(LabelwiseHead, SharedNetwork):
    """AttentionXML for label sets that need no tree: label attention, then fully connected layers.

    You et al. 2019, "AttentionXML: Label Tree-based Attention-Aware Deep Model for High-Performance Extreme Multi-Label
    Text Classification" (https://arxiv.org/abs/1811.01727). `PLT` is the form with a tree.

    Args:
        hidden: widths of the hidden layers; the paper has [256], and [512, 256] for large label sets.
        common: arguments of `LabelwiseHead`.
    """

    def __init__(self, dim: int, space: LabelSpace, hidden: Sequence[int] = (256,), **common: Any) -> None:
        super().__init__(dim, space, **common)
        check_hidden(hidden)
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(space.num_labels, dim)))
        self.make_network(dim, hidden)

    def per_token(self, features: Features) -> Tensors:
        return self.keys_and_values(features.tokens)

    def queries(self) -> nn.Parameter:
        return self.query

    def per_label(self) -> Tensors:
        return (self.query,)

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        return self.network(labels[0], tokens, mask)
