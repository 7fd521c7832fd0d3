"""LSAN: two attentions for each label, one learned freely and one guided by the label's embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.base import check_low
from heads.blockwise import Tensors
from heads.label_attention import LabelwiseHead, attend, attention, widened


class LSAN(LabelwiseHead):
    """Self-attention and label-guided attention, fused for each label, and one scoring network for all labels.

    After Xiao et al. 2019, "Label-Specific Document Representation for Multi-Label Text Classification". Label
    embeddings are learned, from scratch or from texts of labels (`start_from_label_texts`), and matched with a token's
    whole state, which adds up the similarities that the paper computes for the two directions of its BiLSTM. The paper
    takes these similarities as weights as they are, so that a longer document gets larger vectors: `normalize: false`
    does so too. The official code, unlike the paper and this head, averages the vectors of all labels and classifies
    the average; it also attends to padding.

    Args:
        attention_dim: width of the self-attention's hidden layer (d_a).
        hidden: width of the layer before the last (b).
        normalize: label-guided attention is a softmax over the tokens.
        negatives: other labels than those of the batch to train on, drawn anew for each; all by default.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        attention_dim: int = 200,
        hidden: int = 256,
        normalize: bool = True,
        negatives: int | None = None,
    ) -> None:
        super().__init__(dim, space, negatives)
        check_low(1, attention_dim=attention_dim, hidden=hidden)
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
        # Attention and fusion are linear in the tokens: the first layer and the gates go before them.
        values = tokens @ torch.cat([self.gate.weight, self.first.weight]).T
        return tokens, self.inner(tokens).tanh(), values

    def queries(self) -> nn.Parameter:
        return self.embedding

    def per_label(self) -> Tensors:
        return self.query, self.embedding

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor:
        """The mixture of both attentions; without a softmax for texts of labels, that of the other alone."""
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
    """sum_t <query, keys[t]> values[t], (docs, n, width); without a softmax tokens are summed before labels come in."""
    if mask is not None:
        keys = keys * mask.unsqueeze(-1)
    return widened(torch.matmul(queries, torch.matmul(keys.transpose(1, 2), values)))
