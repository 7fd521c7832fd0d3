"""Levels of a label tree: each scores the nodes that are candidates of a document, and no others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from backbones.base import Features
from heads.blockwise import Tensors, add_gradients, groups_of_documents, handed_out, leaves, parted
from heads.label_attention import attend

MANY = 4096  # nodes: with more of them their vectors would begin near zero, all attention uniform


class Level(nn.Module, ABC):
    """A vector for each node in `table`, and what makes logits of some of them.

    Args:
        nodes: of the level.
        width: of a node's vector.
        sparse: whether gradients of the table have only the rows of candidates.
    """

    def __init__(self, nodes: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(nodes, width, sparse=sparse)
        bound = (6 / (min(nodes, MANY) + width)) ** 0.5  # Xavier's
        nn.init.uniform_(self.table.weight, -bound, bound)

    @abstractmethod
    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        """Tensors (docs, length, any) that `score` reads, and the mask (docs, length) of real ones."""

    @abstractmethod
    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        """Logits (docs, n) of nodes: `rows` of the table are (n, width), or (docs, n, width) if each has its own."""

    def loss(self, features: Features, nodes: Tensor | None, positive: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Binary cross-entropy summed over candidates, and their logits (docs, n), which have no gradient.

        Args:
            features: of documents.
            nodes: (docs, n) candidates of each document; none for all nodes of the level.
            positive: (docs, n) whether a candidate is true of the document.
            real: (docs, n) False on candidates that only fill a row up.
        """
        tokens, mask = self.per_token(features)
        table, place = self._rows(nodes)
        shared = [p for p in self.parameters() if p.requires_grad and p is not self.table.weight]
        tensors = [*tokens, table, *shared]
        if not torch.is_grad_enabled():  # within the function it never is
            tensors = [tensor.detach() for tensor in tensors]
        settings = self.score, mask, place, positive, real, len(tokens)
        total, logits = CandidateBCE.apply(*settings, *tensors)  # type: ignore[no-untyped-call]
        return total, logits

    @torch.no_grad()
    def logits(self, features: Features, nodes: Tensor | None) -> Tensor:
        """Logits (docs, n) of candidates, or of all nodes, without a gradient."""
        tokens, mask = self.per_token(features)
        table, place = self.table.weight, None if nodes is None else nodes.clamp_min(0)
        logits = []
        for docs in groups_of_documents(mask, tokens, len(table) if place is None else place.shape[1]):
            rows = table if place is None else table[place[docs.first : docs.end]]
            logits.append(self.score(docs.rows(tokens), docs.mask, rows))
        return torch.cat(logits).float()

    def _rows(self, nodes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows of the table, and which of them the candidates are (filling, -1, becomes any); none means all."""
        if nodes is None:
            return self.table(torch.arange(len(self.table.weight), device=self.table.weight.device)), None
        if not self.table.sparse:
            return self.table.weight, nodes.clamp_min(0)
        chosen, place = torch.unique(nodes.clamp_min(0), return_inverse=True)
        return self.table(chosen), place


class AttentionLevel(Level):
    """Each node attends to the tokens of a document, and one network scores what they find (AttentionXML).

    Args:
        dim: width of token states.
        nodes: of the level.
        hidden: widths of the network's layers before the last.
        layer: of the backbone, the first being 1 and the last -1.
        sparse: whether gradients of the queries have only the rows of candidates.
    """

    def __init__(self, dim: int, nodes: int, hidden: Sequence[int], layer: int, sparse: bool) -> None:
        super().__init__(nodes, dim, sparse)
        self.layer = layer
        self.first = nn.Linear(dim, hidden[0])
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([*hidden, 1]))
        for layers in (self.first, *self.rest):
            nn.init.xavier_uniform_(layers.weight)

    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        tokens = features.states(self.layer)
        # Attention is linear in the tokens: the first layer goes before it, where there is less to compute.
        return (tokens, tokens @ self.first.weight.T), features.mask

    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        x = attend(rows, tokens[0], tokens[1], mask) + self.first.bias
        for layer in self.rest:
            x = layer(x.relu())
        return x.squeeze(-1)


class DotLevel(Level):
    """A node's logit is the product of its vector with the document's, brought to its width (LightXML).

    Args:
        dim: width of a document's vector at one layer.
        nodes: of the level.
        width: of a node's vector; none for that of the document's, without a map.
        layers: the document's vectors of so many last layers, side by side.
        dropout: of those.
        chance: probability of a node, or of each, that the level begins with.
        sparse: whether gradients of the nodes' vectors have only the rows of candidates.
    """

    def __init__(
        self, dim: int, nodes: int, width: int | None, layers: int, dropout: float, chance: Tensor, sparse: bool
    ) -> None:
        super().__init__(nodes, (width or dim * layers) + 1, sparse)  # the last number is a bias
        self.layers, self.dropout = layers, nn.Dropout(dropout)
        self.project = nn.Linear(dim * layers, width) if width else nn.Identity()
        with torch.no_grad():
            self.table.weight[:, -1] = chance.logit()

    def per_token(self, features: Features) -> tuple[Tensors, Tensor]:
        vectors = torch.cat([features.vector(layer) for layer in range(-self.layers, 0)], dim=-1)
        document = self.project(self.dropout(vectors))
        # The document as its only token; a one goes with the bias.
        return (F.pad(document, (0, 1), value=1.0).unsqueeze(1),), features.mask[:, :1]

    def score(self, tokens: Tensors, mask: Tensor | None, rows: Tensor) -> Tensor:
        return torch.matmul(tokens[0].to(rows.dtype), rows.mT).squeeze(1)  # rows (n, width) serve all documents


class CandidateBCE(torch.autograd.Function):
    """Binary cross-entropy summed over documents and their candidates, a group of documents at a time.

    The gradients are made with it, as in `BlockwiseBCE`: nothing of a group is kept for the way back.
    """

    @staticmethod
    def forward(
        ctx: Any,
        score: Any,
        mask: Tensor,
        place: Tensor | None,
        positive: Tensor,
        real: Tensor,
        num_tokens: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The sum and the logits; `tensors` are so many by token, the table's rows, and others that `score` uses."""
        wanted, sizes = ctx.needs_input_grad[6:], (num_tokens, 1)
        grads = [torch.zeros_like(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        (tokens, (table,), shared), (of_tokens, (of_table,), of_shared) = parted(tensors, sizes), parted(grads, sizes)
        logits = torch.zeros(positive.shape, device=mask.device)
        total = torch.zeros((), device=mask.device)
        for docs in groups_of_documents(mask, tokens, positive.shape[1]):
            mine = slice(docs.first, docs.end)
            some_tokens = leaves(docs.rows(tokens), of_tokens)
            (rows,) = leaves([table if place is None else table[place[mine]]], [of_table])
            with torch.set_grad_enabled(any(wanted)):
                scores = score(some_tokens, docs.mask, rows).float()
                loss = ((F.softplus(scores) - scores * positive[mine]) * real[mine]).sum()
            total += loss.detach()
            logits[mine] = scores.detach()
            of_rows = of_table if of_table is None or place is None else torch.zeros_like(rows)
            add_gradients(loss, (*some_tokens, rows, *shared), (*docs.rows(of_tokens), of_rows, *of_shared))
            if of_rows is not None and place is not None:
                of_table.index_add_(0, place[mine].flatten(), of_rows.flatten(0, 1))
        ctx.grads = grads
        ctx.mark_non_differentiable(logits)
        return total, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (*[None] * 6, *handed_out(ctx, scale))
