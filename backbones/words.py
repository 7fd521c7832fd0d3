"""No encoder at all."""

from __future__ import annotations

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace


class Words(Backbone):
    """Nothing to train: for heads that read the words of documents themselves, such as linear engines."""

    dim = 1
    has_tokens = False
    reads_values = True  # they reach the head

    def __init__(self, space: LabelSpace) -> None:
        super().__init__()

    def forward(self, batch: Batch) -> Features:
        pooled = batch.mask.new_zeros(len(batch), self.dim).float()
        tokens = pooled.new_zeros(len(batch), 0, self.dim)
        return Features(tokens, batch.mask[:, :0], pooled, (tokens,), batch=batch)
