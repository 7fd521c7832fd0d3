"""LSAN: self-attention and label-guided attention for each label."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.attention.blockwise import Tensors
from heads.attention.label_attention import LabelwiseHead, at_least_float32, attend, attention
from zoo.core.errors import check_width


class LSAN(LabelwiseHead):
    """Self-attention and label-guided attention, fused for each label, and one scoring network for all labels.

    Xiao et al. 2019, "Label-Specific Document Representation for Multi-Label Text Classification"
    (https://aclanthology.org/D19-1044). Changes to the paper:

    - Label embeddings are learned, from scratch or from label texts (`start_from_label_texts`). They are compared with
      the whole token state, which equals the sum of the paper's similarities for the two LSTM directions.
    - The label-guided attention is a softmax. The paper uses the similarities as weights, so that longer documents get
      larger vectors: `normalize: false`.

    The official code, unlike the paper and this head, classifies the average of all label vectors and attends to
    padding.

    Args:
        attention_dim: hidden width of the self-attention (d_a).
        hidden: width of the hidden layer (b).
        normalize: apply a softmax in the label-guided attention.
        common: arguments of `LabelwiseHead`.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        attention_dim: int = 200,
        hidden: int = 256,
        normalize: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(dim, space, **common)
        check_width(attention_dim=attention_dim, hidden=hidden)
        self.normalize = normalize
        self.inner = nn.Linear(dim, attention_dim, bias=False)  # W1
        self.query = nn.Parameter(torch.empty(space.num_labels, attention_dim))  # W2
        self.embedding = nn.Parameter(torch.empty(space.num_labels, dim))  # C
        self.gate = nn.Linear(dim, 2, bias=False)  # W5 and W6
        self.first, self.last = nn.Linear(dim, hidden), nn.Linear(hidden, 1)  # W3 and W4
        matrices = [layer.weight for layer in (self.inner, self.gate, self.first, self.last)]
        for matrix in (*matrices, self.query, self.embedding):
            nn.init.xavier_uniform_(matrix)

    def per_token(self, features: Features) -> Tensors:
        tokens = features.tokens
        # Attention and fusion are linear in the tokens: applying the first layer and the gates to them is cheaper.
        values = tokens @ torch.cat([self.gate.weight, self.first.weight]).T
        return tokens, self.inner(tokens).tanh(), values

    def queries(self) -> nn.Parameter:
        return self.embedding

    def per_label(self) -> Tensors:
        return self.query, self.embedding

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor:
        """Mixture of both attentions; the self-attention only if `normalize` is False."""
        states, inner, values = self.per_token(features)
        own = attention(self.query[labels], inner, features.mask)
        if not self.normalize:
            return own
        guided = attention(self.embedding[labels], states, features.mask)
        alpha, beta = (torch.matmul(guided, values[..., :1]).sigmoid(), torch.matmul(own, values[..., 1:2]).sigmoid())
        return torch.lerp(own, guided, alpha / (alpha + beta))

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        (states, inner, values), (query, embedding) = tokens, labels
        own = attend(query, inner, values, mask)
        guided = attend(embedding, states, values, mask) if self.normalize else add_up(embedding, states, values, mask)
        alpha, beta = guided[..., :1].sigmoid(), own[..., 1:2].sigmoid()
        share = alpha / (alpha + beta)
        fused = torch.lerp(own[..., 2:], guided[..., 2:], share)
        logits: Tensor = self.last((fused + self.first.bias).relu())
        return logits.squeeze(-1)


def add_up(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """sum_t <query, keys[t]> values[t], (docs, n, width); without a softmax, tokens can be summed before labels."""
    if mask is not None:
        keys = keys * mask.unsqueeze(-1)
    return at_least_float32(torch.matmul(queries, torch.matmul(keys.transpose(1, 2), values)))
