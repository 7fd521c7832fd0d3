"""The plainest head: what every other one has to beat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.base import DenseHead


class Linear(DenseHead):
    """One linear classifier for each label on the document's vector, all trained jointly.

    `hidden` puts a linear map to so many dimensions before it (128 makes HTTN's Joint baseline).
    """

    def __init__(self, dim: int, space: LabelSpace, hidden: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(dim, space)
        self.project = nn.Linear(dim, hidden) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden or dim, space.num_labels)
        with torch.no_grad():
            # Begin at the label prior: otherwise the first epochs only learn that labels are rare.
            self.classifier.bias.copy_(space.prior().logit())

    def forward(self, features: Features) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.project(features.pooled)))
        return logits
