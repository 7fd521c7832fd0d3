"""Linear classifiers, the baseline of all heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace
from heads.base import DenseHead
from heads.loss_base import MakeLoss
from zoo.core.errors import check_range, check_width


class Linear(DenseHead):
    """One linear classifier per label on the document's vector, all trained jointly.

    Args:
        hidden: width of a linear projection before the classifiers; 128 is the baseline Joint of HTTN. Default: none.
        dropout: dropout rate before the classifiers.
        layers: number of last layers whose document vectors are concatenated; 5, with dropout 0.5, is LightXML's.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        hidden: int | None = None,
        dropout: float = 0.0,
        layers: int = 1,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space, loss)
        check_width(layers=layers, hidden=hidden)
        check_range(0, 1, dropout=dropout)
        self.needs_layers = layers
        self.project = nn.Linear(layers * dim, hidden) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden or layers * dim, space.num_labels)
        with torch.no_grad():
            # Start at the label prior (under BCE): otherwise the first epochs only learn that labels are rare.
            self.classifier.bias.copy_(self.criterion.start_logits(space))

    def forward(self, features: Features) -> Tensor:
        last = [features.vector(layer) for layer in range(-self.needs_layers, 0)]
        logits: Tensor = self.classifier(self.dropout(self.project(torch.cat(last, dim=-1))))
        return logits

    def weight_norms(self) -> Tensor:
        norms: Tensor = self.classifier.weight.norm(dim=1)
        return norms

    def label_vectors(self) -> Tensor:
        return self.classifier.weight
