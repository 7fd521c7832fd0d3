"""LightXML: clusters of labels, then labels of the likely ones, both from one vector of a document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.base import check_low
from heads.candidates import DotLevel, Level
from heads.plt import TreeHead


class LightXML(TreeHead):
    """A linear classifier for each cluster, and a vector for each label that meets a narrow one of the document.

    After Jiang et al. 2021, "LightXML: Transformer with Dynamic Negative Sampling for High-Performance Extreme
    Multi-label Text Classification": the clusters generate the negatives of their labels, and all is trained at once.

    Args:
        layers: the document's vectors of so many last layers, side by side.
        hidden: width of a label's vector; the paper has 300 to 500.
        dropout: of the document's vectors.
        common: settings of every `TreeHead`.
    """

    def __init__(
        self, dim: int, space: LabelSpace, layers: int = 1, hidden: int = 300, dropout: float = 0.5, **common: Any
    ) -> None:
        super().__init__(dim, space, **common)
        check_low(1, layers=layers, hidden=hidden)
        self.needs_layers, self.hidden, self.dropout = layers, hidden, dropout
        self.prior, self.positives = space.prior(), sum(space.counts) / max(space.num_documents, 1)
        self.add_trees()

    def weight_norms(self) -> Tensor:
        """Of several trees the mean."""
        return torch.stack([tree.level(tree.last).table.weight[:, :-1].norm(dim=1) for tree in self._trees()]).mean(0)

    def make_level(self, nodes: int, depth: int) -> Level:
        width, chance = None, torch.tensor(self.positives / nodes)
        if depth == len(self.widths):
            # A label is a candidate where its cluster is in the beam: about so much more often true than elsewhere.
            width, chance = self.hidden, self.prior * max(self.widths[-1] / self.beam, 1)
        chance = chance.clamp(1e-6, 0.5)
        return DotLevel(self.dim, nodes, width, self.needs_layers, self.dropout, chance, self.sparse(nodes))
