"""EXAM: word-level interactions of tokens and labels, aggregated by a network over positions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.attention.blockwise import Tensors
from heads.attention.label_attention import LabelwiseHead, at_least_float32
from zoo.core.errors import check_width
from zoo.core.exporting import is_exporting


class EXAM(LabelwiseHead):
    r"""Explicit interaction model: a label is scored from its similarity to each token of the document.

    Du et al. 2019, "Explicit Interaction Model towards Text Classification" (https://arxiv.org/abs/1811.09386), in its
    multi-label form. With token states x and a vector e for each label, shared layers read the similarities in the
    order of the tokens:

    .. math:: I_{tl} = \langle x_t, e_l \rangle, \qquad z_l = w_2^\top \operatorname{ReLU}(W_1 I_{\cdot l} + b_1) + b_2

    Changes to the paper:

    - W_1 has one column per position, so documents have a fixed length: `length`; further tokens are not read. The
      paper pads on the left, we on the right, where the similarities are 0.
    - The encoder is the backbone. The paper has a GRU here, and region embeddings for its multi-class tasks.
    - `start_from_label_texts` can initialize the label vectors, which the paper learns from scratch.

    Args:
        length: number of positions; set it to the maximum length of the documents.
        hidden: width of the hidden layer. Default: twice the length, as in the official code.
        common: arguments of `LabelwiseHead`.
    """

    def __init__(
        self, dim: int, space: LabelSpace, length: int = 500, hidden: int | None = None, **common: Any
    ) -> None:
        super().__init__(dim, space, **common)
        check_width(length=length, hidden=hidden)
        self.length = length
        self.embedding = nn.Parameter(nn.init.xavier_uniform_(torch.empty(space.num_labels, dim)))
        self.first, self.last = nn.Linear(length, hidden or 2 * length), nn.Linear(hidden or 2 * length, 1)
        for layer in (self.first, self.last):
            nn.init.xavier_uniform_(layer.weight)

    def per_token(self, features: Features) -> Tensors:
        return (features.tokens,)

    def per_label(self) -> Tensors:
        return (self.embedding,)

    def queries(self) -> nn.Parameter:
        return self.embedding

    def attention_weights(self, features: Features, labels: Tensor) -> None:
        return None  # similarities are not weights

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        states = tokens[0]
        if is_exporting():  # a fixed length, since the columns of the weights are fixed in a graph
            states = F.pad(states, (0, 0, 0, self.length))
            mask = None if mask is None else F.pad(mask, (0, self.length))
        states = states[:, : self.length]
        if mask is not None:
            states = states * mask[:, : self.length].unsqueeze(-1)
        similar = at_least_float32(torch.matmul(labels[0], states.transpose(1, 2)))  # (docs, n, length)
        hidden = torch.matmul(similar, self.first.weight[:, : similar.shape[-1]].T) + self.first.bias
        logits: Tensor = self.last(hidden.relu())
        return logits.squeeze(-1)
