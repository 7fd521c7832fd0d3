"""The plainest head: what every other one has to beat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.base import DenseHead, check_low


class Linear(DenseHead):
    """One linear classifier for each label on the document's vector, all trained jointly.

    Args:
        hidden: a linear map to so many dimensions comes before it; 128 makes HTTN's Joint baseline.
        dropout: before the classifiers.
        layers: take the document's vectors of so many last layers side by side; 5, with dropout 0.5, are LightXML's.
    """

    def __init__(
        self, dim: int, space: LabelSpace, hidden: int | None = None, dropout: float = 0.0, layers: int = 1
    ) -> None:
        super().__init__(dim, space)
        check_low(1, layers=layers, hidden=hidden)
        self.needs_layers = layers
        self.project = nn.Linear(layers * dim, hidden) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden or layers * dim, space.num_labels)
        with torch.no_grad():
            # Begin at the label prior: otherwise the first epochs only learn that labels are rare.
            self.classifier.bias.copy_(space.prior().logit())

    def forward(self, features: Features) -> Tensor:
        last = [features.vector(layer) for layer in range(-self.needs_layers, 0)]
        logits: Tensor = self.classifier(self.dropout(self.project(torch.cat(last, dim=-1))))
        return logits

    def weight_norms(self) -> Tensor:
        norms: Tensor = self.classifier.weight.norm(dim=1)
        return norms
