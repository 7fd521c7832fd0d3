"""LDGN: label attention and graph convolutions over a static and a dynamic graph of the labels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.attention.blockwise import (
    CHUNK,
    DocumentSlice,
    Labels,
    Tensors,
    blockwise_loss,
    label_chunks,
    split_documents,
)
from heads.attention.label_attention import LabelwiseHead, attend, sample_labels
from heads.base import TransitionContext
from heads.graph.label_graph import LabelGraph, co_occurrence, given_second, mix
from zoo.core.errors import UserError, check_width

LIMIT = 4096  # labels up to which training can keep a graph of all of them: 64 MB per copy and document
SLOPE = 0.2  # of LeakyReLU


class LDGN(LabelwiseHead):
    r"""Label-specific features that exchange information along two graphs of the labels.

    Ma et al. 2021, "Label-Specific Dual Graph Neural Network for Multi-Label Text Classification"
    (https://aclanthology.org/2021.acl-long.298). With U the vectors of label attention (labels, dim) of a document:

    .. math::
        H^1 &= \phi(\hat A^s U W^1), \quad H^2 = \phi(\hat A^s H^1 W^2), \quad A^s_{ij} = P(l_i \mid l_j) \\
        A^D &= \sigma\big((H^2 W_a)(H^2 W_b)^\top\big), \quad
        H^3 = \phi(\hat A^D H^2 W^3), \quad H^4 = \phi(\hat A^D H^3 W^4) \\
        z &= [H^2; H^4] \, w

    The 1x1 convolutions over labels that the paper makes the dynamic graph with are the matrices W_a and W_b. Our
    choices, where the paper leaves them open:

    - Graphs are not symmetric, so :math:`\hat A = D^{-1} A`: every label receives a weighted mean. The diagonal of A^s
      is 1, a loop; no further loops are added. phi is LeakyReLU with slope 0.2.
    - w is shared by all labels, whose vectors differ already, and has a bias.
    - A label keeps its `neighbours` strongest edges in the static graph, so that all corpora have one size.

    The sigmoid makes the dynamic graph full rank, so no factorisation avoids labels x labels values per document. With
    `negatives`, each batch trains on a subgraph: the labels of its documents and a random sample of all others, whose
    messages are weighted by the inverse of their sampling rate, as in FastGCN (Chen et al. 2018,
    https://arxiv.org/abs/1801.10247); a label's message to itself is not. Predictions always use the graph of all
    labels, one block of rows after another, in time quadratic in the number of labels.

    Args:
        hidden: width of all graph layers.
        neighbours: number of neighbours of a label in the static graph, itself included.
        common: arguments of `LabelwiseHead`. `negatives` is required from 4,097 labels on.
    """

    def __init__(self, dim: int, space: LabelSpace, hidden: int = 256, neighbours: int = 64, **common: Any) -> None:
        super().__init__(dim, space, **common)
        check_width(hidden=hidden, neighbours=neighbours)
        if self.negatives is None and space.num_labels > LIMIT:
            raise UserError(
                f"`negatives=None` keeps a graph of {space.num_labels:,} x {space.num_labels:,} labels for each "
                f"document, and the limit is {LIMIT:,}: set `negatives=500` to train on sampled labels"
            )
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(space.num_labels, dim)))  # C
        self.graph = LabelGraph(space.num_labels, neighbours)
        self.static = nn.ModuleList(nn.Linear(width, hidden, bias=False) for width in (dim, hidden))  # W1 and W2
        self.dynamic = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(2))  # W3 and W4
        self.edges = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(2))  # Wa and Wb
        self.last = nn.Linear(2 * hidden, 1)
        for layer in (*self.static, *self.dynamic, *self.edges, self.last):
            nn.init.xavier_uniform_(layer.weight)

    @property
    def pending(self) -> tuple[str, ...]:
        return () if self.graph.filled else ("count_labels",)

    def count_labels(self, ctx: TransitionContext) -> None:
        """Fill the static graph with the co-occurrence of labels in the training documents."""
        self.graph.fill(given_second(co_occurrence(ctx.train_targets(), self.num_labels)))

    def per_token(self, features: Features) -> Tensors:
        # Attention is linear in the tokens: applying W1 to them is cheaper.
        return features.tokens, self.static[0](features.tokens)

    def queries(self) -> nn.Parameter:
        return self.query

    def per_label(self) -> Tensors:
        return self.query, torch.arange(self.num_labels, device=self.query.device)

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors, weight: Tensor | None = None) -> Tensor:
        """Logits (docs, n) of all labels of a graph, which are all labels or a sample of them with its weights."""
        (states, values), (query, chosen) = tokens, labels
        edges = self.static_edges(chosen, weight)
        nodes = F.leaky_relu(along(attend(query, states, values, mask), *edges), SLOPE)
        nodes = F.leaky_relu(along(self.static[1](nodes), *edges), SLOPE)  # H2
        graph = DynamicGraph(self.edges[0](nodes), self.edges[1](nodes), weight)
        further = nodes
        for layer in self.dynamic:
            further = F.leaky_relu(graph.mix(layer(further)), SLOPE)
        logits: Tensor = self.last(torch.cat([nodes, further], dim=-1))
        return logits.squeeze(-1)

    def static_edges(self, chosen: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Neighbours (n, width) of chosen labels among themselves, as positions, and normalized weights."""
        neighbours, weights = self.graph.neighbours[chosen], self.graph.weights[chosen]
        if weight is not None:
            place = chosen.new_full((self.num_labels,), -1)
            place[chosen] = torch.arange(len(chosen), device=chosen.device)
            found = place[neighbours]
            weights = weights * (found >= 0) * weight[found].where(neighbours != chosen.unsqueeze(1), 1.0)
            neighbours = found.clamp_min(0)
        return neighbours, weights / weights.sum(1, keepdim=True)

    def forward(self, features: Features) -> Tensor:
        tokens, labels = self.per_token(features), self.per_label()
        slices = self.slices(features.mask, tokens, self.num_labels)
        return torch.cat([self.score(docs.trim(tokens), docs.mask, labels) for docs in slices])

    def label_loss(self, features: Features, targets: Targets, tokens: Tensors | None = None) -> Tensor:
        tokens = self.per_token(features) if tokens is None else tokens
        known, labels, weight = targets.below(self.num_labels), self.per_label(), None
        rows, columns, documents = known.rows, known.indices, self.criterion.document_values(known)
        if self.negatives is not None:
            chosen, weight = sample_labels(columns, self.num_labels, self.negatives)
            place = torch.zeros_like(labels[1])
            place[chosen] = torch.arange(len(chosen), device=chosen.device)
            columns, labels = place[columns], (self.query[chosen], chosen)

        def block_loss(logits: Tensor, docs: slice, chunk: Labels) -> Tensor:
            values = None if documents is None else documents[docs]
            return self.criterion.over_block(logits, rows - docs.start, columns, labels[1], weight, values)

        every = slice(0, len(labels[0]))
        blocks = [(docs, every) for docs in self.slices(features.mask, tokens, every.stop)]
        shared = [p for p in self.parameters() if p.requires_grad and p is not self.query]
        score = partial(self.score, weight=weight)
        return blockwise_loss(score, block_loss, blocks, tokens, labels, shared) / len(features.mask)

    @staticmethod
    def slices(mask: Tensor, tokens: Tensors, labels: int) -> list[DocumentSlice]:
        return split_documents(mask, tokens, labels, min(labels, CHUNK))


class DynamicGraph:
    """Row-normalized sigmoid(Q K^T) of each document, in blocks of rows; beyond LIMIT labels they are not kept."""

    def __init__(self, queries: Tensor, keys: Tensor, weight: Tensor | None) -> None:
        self.queries, self.keys, self.weight = queries, keys, weight
        self.chunks = label_chunks(queries.shape[1])
        self.kept = list(self.blocks()) if queries.shape[1] <= LIMIT or torch.is_grad_enabled() else None

    def blocks(self) -> Iterator[Tensor]:
        for rows in self.chunks:
            scores = torch.matmul(self.queries[:, rows], self.keys.transpose(1, 2)).float()
            edges = F.logsigmoid(scores)  # the softmax normalizes the sigmoids, also where all of them are 0
            if self.weight is not None:
                own = torch.arange(rows.start, rows.stop, device=edges.device)
                scale = self.weight.log().repeat(len(own), 1)
                scale[own - rows.start, own] = 0
                edges = edges + scale
            yield edges.softmax(-1)

    def mix(self, vectors: Tensor) -> Tensor:
        """A^D X, (docs, n, width)."""
        blocks = self.blocks() if self.kept is None else self.kept
        return torch.cat([torch.matmul(block, vectors.float()) for block in blocks], dim=1)


def along(vectors: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """A^s X of each document, (docs, n, width)."""
    docs, labels, width = vectors.shape
    flat = vectors.transpose(0, 1).reshape(labels, docs * width)
    return mix(flat, neighbours, weights).view(labels, docs, width).transpose(0, 1)
