"""Pooling of token states into document vectors, ignoring padding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Pooling = Literal["attention", "mean", "max"]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True, and zero elsewhere; rows without tokens are zero."""
    scores = scores.float().masked_fill(~mask, -torch.inf)
    best = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    # Far below the maximum exp() is denormal, and very slow on a CPU.
    weights = (scores - best.detach()).clamp_min(-60).exp() * mask
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


class MaskedPool(nn.Module):
    """Mean, maximum, or self-attention with weights softmax_t(<w, x_t> + b), as in HTTN (Eq. 2-3)."""

    def __init__(self, dim: int, kind: Pooling) -> None:
        super().__init__()
        self.kind = kind
        self.score = nn.Linear(dim, 1) if kind == "attention" else None

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "max":
            lowest = torch.finfo(tokens.dtype).min
            return tokens.masked_fill(~mask.unsqueeze(-1), lowest).amax(1)
        if self.score is not None:
            weight = masked_softmax(self.score(tokens).squeeze(-1), mask)  # (batch, length)
        else:
            weight = mask / mask.sum(-1, keepdim=True).clamp_min(1)
        return torch.einsum("bt,btd->bd", weight.to(tokens.dtype), tokens)
