"""No encoder, for heads that read words."""

from __future__ import annotations

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace


class Words(Backbone):
    """Passes the batch on to heads that read words themselves, such as linear engines; has no parameters."""

    dim = 1
    has_tokens = False
    reads_values = True  # through the head

    def __init__(self, space: LabelSpace) -> None:
        super().__init__()

    def forward(self, batch: Batch) -> Features:
        pooled = batch.mask.new_zeros(len(batch), self.dim).float()
        tokens = pooled.new_zeros(len(batch), 0, self.dim)
        return Features(tokens, batch.mask[:, :0], pooled, (tokens,), batch=batch)
