"""LightXML: clusters, then labels of the most likely clusters, scored from one document vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.tree.candidates import DotLevel, Level
from heads.tree.plt import TreeHead
from zoo.core.errors import check_range, check_width


class LightXML(TreeHead):
    """LightXML: linear classifiers of clusters generate the candidates, label vectors score them; trained jointly.

    Jiang et al. 2021, "LightXML: Transformer with Dynamic Negative Sampling for High-Performance Extreme Multi-label
    Text Classification" (https://arxiv.org/abs/2101.03305).

    Args:
        layers: number of last layers whose document vectors are concatenated.
        hidden: width of a label's vector; the paper has 300 to 500.
        dropout: dropout rate of the document's vectors.
        common: arguments of `TreeHead`.
    """

    def __init__(
        self, dim: int, space: LabelSpace, layers: int = 1, hidden: int = 300, dropout: float = 0.5, **common: Any
    ) -> None:
        super().__init__(dim, space, **common)
        check_width(layers=layers, hidden=hidden)
        check_range(0, 1, dropout=dropout)
        self.needs_layers, self.hidden, self.dropout = layers, hidden, dropout
        self.prior, self.positives = space.prior(), sum(space.counts) / max(space.num_documents, 1)
        self.add_trees()

    def weight_norms(self) -> Tensor:
        """Norm of each label's weights, the mean over trees."""
        return torch.stack([tree.level(tree.last).table.weight[:, :-1].norm(dim=1) for tree in self._trees()]).mean(0)

    def make_level(self, nodes: int, depth: int) -> Level:
        width, chance = None, torch.tensor(self.positives / nodes)
        if depth == len(self.widths):
            # A label is a candidate only if its cluster is in the beam, where it is that much more likely.
            width, chance = self.hidden, self.prior * max(self.widths[-1] / self.beam, 1)
        chance = chance.clamp(1e-6, 0.5)
        return DotLevel(self.dim, nodes, width, self.needs_layers, self.dropout, chance, self.sparse(nodes))
