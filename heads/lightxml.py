"""LightXML: clusters of labels, then labels of the likely ones, both from one vector of a document."""

from __future__ import annotations

from datamodules.batch import LabelSpace
from heads.base import check_low
from heads.candidates import DotLevel, Level
from heads.plt import TreeHead, TreeSettings


class LightXML(TreeHead):
    """A linear classifier for each cluster, and a vector for each label that meets a narrow one of the document.

    After Jiang et al. 2021, "LightXML: Transformer with Dynamic Negative Sampling for High-Performance Extreme
    Multi-label Text Classification": the clusters generate the negatives of their labels, and all is trained at once.

    Args:
        layers: the document's vectors of so many last layers, side by side.
        hidden: width of a label's vector; the paper has 300 to 500.
        dropout: of the document's vectors.
        tree: its shape.
        beam: clusters whose labels are candidates.
        cluster_weight: of the losses of clusters beside that of labels.
        path_weight: exponent of the clusters' probabilities in that of a label; 0 leaves them out of it.
        sparse_above: levels with more nodes than this have gradients for the rows of candidates alone.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        layers: int = 1,
        hidden: int = 300,
        dropout: float = 0.5,
        tree: TreeSettings | None = None,
        beam: int = 16,
        cluster_weight: float = 1.0,
        path_weight: float = 1.0,
        sparse_above: int = 100_000,
    ) -> None:
        super().__init__(dim, space, tree, beam, cluster_weight, path_weight, sparse_above)
        check_low(1, layers=layers, hidden=hidden)
        self.needs_layers, self.hidden, self.dropout = layers, hidden, dropout
        self.add_trees()

    def make_level(self, nodes: int, depth: int) -> Level:
        width = self.hidden if depth == len(self.widths) else None
        return DotLevel(self.dim, nodes, width, self.needs_layers, self.dropout, self.sparse(nodes))
