"""Dropout whose random masks are cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEVELS = 2**16  # a drop rate is rounded to a multiple of 1 / LEVELS
PER_DRAW = 4  # 16-bit values in a draw of 64 bits


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws 16 bits for each element on a CPU.

    Without Intel's MKL, PyTorch draws a double for each, one after the other, which takes a good part of a BiLSTM's
    training step: `python benchmarks/paper_steps.py` measures it. What is kept is scaled by the rounded rate, so that
    expectations are exact.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        if not self.training or x.device.type != "cpu" or not 0 < dropped < LEVELS:
            return super().forward(x)
        mask = random_bits(x.shape) >= dropped - LEVELS // 2
        return x * mask.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


def random_bits(shape: torch.Size) -> Tensor:
    """Independent values, uniform over all 16-bit integers."""
    size = shape.numel()
    draws = torch.empty(-(-size // PER_DRAW), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:size].view(shape)
