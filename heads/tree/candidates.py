"""Levels of a label tree, each of which scores only the candidate nodes of a document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from heads.attention.attentionxml import SharedNetwork
from heads.attention.blockwise import Labels, Tensors, blockwise_loss, split_documents
from heads.loss_base import Loss
from heads.losses import BCE

MAX_FAN = 4096  # bounds the fan in Xavier's formula: very wide levels would start near zero, with uniform attention


class Level(nn.Module, ABC):
    """Base class of levels: a table with a vector per node; implement `per_token` and `score`.

    Args:
        nodes: number of nodes of the level.
        width: width of a node's vector.
        sparse: sparse gradients of the table, with only the rows of candidates.
    """

    def __init__(self, nodes: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(nodes, width, sparse=sparse)
        bound = (6 / (min(nodes, MAX_FAN) + width)) ** 0.5
        nn.init.uniform_(self.table.weight, -bound, bound)

    @abstractmethod
    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        """Tensors (docs, length, any) that `score` reads, and their mask (docs, length)."""

    @abstractmethod
    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        """Logits (docs, n) of nodes; `rows` of the table are (n, width), or (docs, n, width) per document."""

    def loss(
        self,
        features: Features,
        nodes: Tensor | None,
        positive: Tensor,
        real: Tensor,
        loss: Loss | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss summed over candidates, and their logits (docs, n) without gradient.

        Args:
            features: encoded documents.
            nodes: (docs, n) candidates of each document; None for all nodes of the level.
            positive: (docs, n) whether a candidate is true of the document.
            real: (docs, n) False on padding candidates.
            loss: loss of labels, if the nodes are labels. Default: binary cross-entropy.
            documents: `document_values` of the loss.
        """
        criterion, all_logits = loss or BCE(), torch.zeros(positive.shape, device=positive.device)

        def block_loss(logits: Tensor, docs: slice, _: Labels) -> Tensor:
            all_logits[docs] = logits.detach()
            labels = slice(0, logits.shape[1]) if nodes is None else nodes[docs].clamp_min(0)
            values = None if documents is None else documents[docs]
            return criterion.over_candidates(logits, positive[docs], labels, real[docs], values)

        tokens, mask = self.per_token(features)
        table, index = self._rows(nodes)
        slices = split_documents(mask, tokens, positive.shape[1])
        blocks = [(docs, slice(None) if index is None else index[docs.documents]) for docs in slices]
        shared = [p for p in self.parameters() if p.requires_grad and p is not self.table.weight]

        def score(tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
            return self.score(tokens, mask, labels[0])

        return blockwise_loss(score, block_loss, blocks, tokens, (table,), shared), all_logits

    @torch.no_grad()
    def logits(self, features: Features, nodes: Tensor | None) -> Tensor:
        """Logits (docs, n) of candidates, or of all nodes, without gradient."""
        tokens, mask = self.per_token(features)
        table, index = self.table.weight, None if nodes is None else nodes.clamp_min(0)
        logits = []
        for docs in split_documents(mask, tokens, len(table) if index is None else index.shape[1]):
            rows = table if index is None else table[index[docs.documents]]
            logits.append(self.score(docs.trim(tokens), docs.mask, rows))
        return torch.cat(logits).float()

    def _rows(self, nodes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows of the table, and the row of each candidate (any row for padding); None means all rows in order."""
        if nodes is None:
            return self.table(torch.arange(len(self.table.weight), device=self.table.weight.device)), None
        if not self.table.sparse:
            return self.table.weight, nodes.clamp_min(0)
        chosen, index = torch.unique(nodes.clamp_min(0), return_inverse=True)
        return self.table(chosen), index


class AttentionLevel(Level, SharedNetwork):
    """Label attention of the nodes over the tokens, scored by one network for all nodes (AttentionXML).

    Args:
        dim: width of token states.
        nodes: number of nodes of the level.
        hidden: widths of the network's hidden layers.
        layer: layer of the backbone to read, from 1; -1 is the last.
        sparse: sparse gradients of the queries, with only the rows of candidates.
    """

    def __init__(self, dim: int, nodes: int, hidden: Sequence[int], layer: int, sparse: bool) -> None:
        super().__init__(nodes, dim, sparse)
        self.layer = layer
        self.make_network(dim, hidden)

    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        return self.keys_and_values(features.states(self.layer)), features.mask

    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        return self.network(rows, tokens, mask)


class DotLevel(Level):
    """Inner products of node vectors with a projection of the document's vector (LightXML).

    Args:
        dim: width of a document's vector at one layer.
        nodes: number of nodes of the level.
        width: width of a node's vector; None for that of the document's, without a projection.
        layers: number of last layers whose document vectors are concatenated.
        dropout: dropout rate of these vectors.
        chance: initial probability of all nodes, or of each.
        sparse: sparse gradients of the node vectors, with only the rows of candidates.
    """

    def __init__(
        self, dim: int, nodes: int, width: int | None, layers: int, dropout: float, chance: Tensor, sparse: bool
    ) -> None:
        super().__init__(nodes, (width or dim * layers) + 1, sparse)  # the last column is the bias
        self.layers, self.dropout = layers, nn.Dropout(dropout)
        self.project = nn.Linear(dim * layers, width) if width else nn.Identity()
        with torch.no_grad():
            self.table.weight[:, -1] = chance.logit()

    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        vectors = torch.cat([features.vector(layer) for layer in range(-self.layers, 0)], dim=-1)
        document = self.project(self.dropout(vectors))
        # The document is its only token; the constant 1 multiplies the bias.
        return (F.pad(document, (0, 1), value=1.0).unsqueeze(1),), features.mask[:, :1]

    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        return torch.matmul(tokens[0].to(rows.dtype), rows.mT).squeeze(1)  # (n, width) broadcasts over documents
