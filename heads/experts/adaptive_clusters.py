"""APLC: adaptive probabilistic label clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Ranking, probabilities, top_candidates, top_labels
from heads.loss_base import MakeLoss
from heads.losses import BCE
from zoo.core.errors import UserError, check_range, check_width

MAX_PRIOR = 0.99  # bound of initial probabilities: a sigmoid closer to 1 learns slowly


class AdaptiveClusters(Head):
    """Label clusters by frequency: a rare label's probability is that of its cluster times its own within the cluster.

    Ye et al. 2020, "Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for Extreme
    Multi-label Text Classification" (https://arxiv.org/abs/2007.02439). The labels of a cluster are trained only on the
    documents that have some of them, and rarer clusters have narrower vectors.

    Args:
        cutoffs: start of each cluster after the first, as a share of the labels (below 1) or a label number; the paper
            has [0.5], and [0.25, 0.5, 0.75] for the largest label sets.
        shrink: factor by which the vectors of each further cluster are narrower (q).
        hidden: width of a tanh layer before all clusters. Default: no such layer.
        dropout: dropout rate of the document's vector, and of the narrower ones.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy, which clusters always have.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        cutoffs: Sequence[int | float] = (0.5,),
        shrink: int = 2,
        hidden: int | None = None,
        dropout: float = 0.0,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space)
        self.criterion = (loss or BCE)(space)
        check_width(shrink=shrink, hidden=hidden)
        check_range(0, 1, dropout=dropout)
        self.bounds = label_bounds(cutoffs, space.num_labels)
        width, sizes = hidden or dim, [high - low for low, high in pairwise(self.bounds)]
        widths = [width // shrink**n for n in range(1, len(sizes))]
        if widths[-1] < 2:  # the layer norm of a single number is always zero
            raise UserError(f"`shrink={shrink}` gives cluster widths {widths} for a width of {width}: the lowest is 2")
        self.project = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh()) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        priors = torch.split(space.prior(), sizes)
        some = [any_of(prior) for prior in priors[1:]]
        conditional = [(prior / p).clamp_max(MAX_PRIOR) for prior, p in zip(priors[1:], some, strict=True)]
        self.first = linear(width, torch.cat([priors[0], torch.stack(some)]))  # frequent labels, then clusters
        self.tails = nn.ModuleList(
            nn.Sequential(nn.Linear(width, narrow), nn.LayerNorm(narrow), nn.Dropout(dropout), linear(narrow, within))
            for narrow, within in zip(widths, conditional, strict=True)
        )

    def encode(self, features: Features) -> Tensor:
        """The vectors (batch, width) that all clusters read."""
        vectors: Tensor = self.dropout(self.project(features.pooled))
        return vectors

    def first_logits(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the first cluster's labels, and of the other clusters."""
        logits: Tensor = self.first(vectors).float()
        return logits[:, : self.bounds[1]], logits[:, self.bounds[1] :]

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        vectors = self.encode(features)
        labels, clusters = self.first_logits(vectors)
        absent, tails = torch.ones_like(clusters), []
        documents = self.criterion.document_values(targets)
        for i, (low, high) in enumerate(pairwise(self.bounds[1:])):
            inside = (targets.indices >= low) & (targets.indices < high)
            rows = targets.rows[inside]
            absent[rows, i] = 0
            tails.append(self.tail_loss(i, vectors, clusters[:, i], rows, targets.indices[inside] - low, documents))
        # A document without labels of a cluster trains only the cluster's logit; with some, both factors.
        frequent = slice(0, self.bounds[1])
        head = self.criterion.over_block(labels, targets.rows, targets.indices, frequent, None, documents)
        head = head / len(vectors) + (F.softplus(clusters) * absent).sum() / len(vectors)
        tail = torch.stack(tails).sum() / len(vectors)
        return {"loss": head + tail, "head": head, "tail": tail}

    def tail_loss(
        self, tail: int, vectors: Tensor, clusters: Tensor, rows: Tensor, labels: Tensor, values: Tensor | None
    ) -> Tensor:
        """Summed loss of a cluster's labels over the documents that have some: `rows` have `labels`."""
        # Without such documents the layers still run, on none: DDP needs a gradient, if only zeros.
        documents, row = torch.unique(rows, return_inverse=True)
        logits = product_logit(clusters[documents].unsqueeze(1), self.tails[tail](vectors[documents]).float())
        within = slice(*self.bounds[tail + 1 : tail + 3])
        some = None if values is None else values[documents]
        return self.criterion.over_block(logits, row, labels, within, None, some)

    def rank(self, features: Features, k: int) -> Ranking:
        with torch.autocast(features.pooled.device.type, enabled=False):
            vectors = self.encode(features.float())
            labels, clusters = self.first_logits(vectors)
            candidates = [top_labels(labels, min(k, labels.shape[1]))]
            for i, tail in enumerate(self.tails):
                logits = tail(vectors).float()
                # Rank by logit within the cluster: products with a small cluster probability would round to ties.
                best = top_labels(logits, min(k, logits.shape[1]))
                scores = product_logit(clusters[:, i : i + 1], best.scores)
                candidates.append(Ranking(scores, best.labels + self.bounds[i + 1]))
        return merge(candidates, k)


def label_bounds(cutoffs: Sequence[int | float], num_labels: int) -> list[int]:
    """First label of each cluster, and the number of labels at the end."""
    setting, bounds = f"`cutoffs={list(cutoffs)}`", [0]
    for cutoff in cutoffs:
        if isinstance(cutoff, str) or not cutoff > 0 or (cutoff > 1 and cutoff % 1 != 0):
            raise UserError(f"{setting}: {cutoff} is neither a share of the labels below 1 nor a label number")
        bounds.append(int(cutoff) if cutoff >= 1 else math.floor(cutoff * num_labels + 1e-9))
    bounds.append(num_labels)
    if len(bounds) == 2:
        raise UserError(f"{setting}: give at least one cutoff")
    if any(high <= low for low, high in pairwise(bounds)):
        parts = ", ".join(f"{low} to {high}" for low, high in pairwise(bounds))
        raise UserError(f"{setting} makes {num_labels} labels {parts}: cutoffs must increase, no part may be empty")
    return bounds


def any_of(priors: Tensor) -> Tensor:
    """Prior probability of having any of some labels, assuming independence."""
    return (-(-priors.double()).log1p().sum().expm1()).clamp_max(MAX_PRIOR).float()


def linear(width: int, priors: Tensor) -> nn.Linear:
    """Linear layer with biases at the logits of these priors."""
    layer = nn.Linear(width, len(priors))
    with torch.no_grad():
        layer.bias.copy_(priors.logit())
    return layer


def product_logit(one: Tensor, other: Tensor) -> Tensor:
    """Logit of sigmoid(one) * sigmoid(other), computed from logits."""
    # 1 / product - 1 = (1 + e^-a) (1 + e^-b) - 1
    return -torch.logaddexp(torch.logaddexp(-one, -other), -one - other)


def merge(candidates: Sequence[Ranking], k: int) -> Ranking:
    """The k best labels of several rankings by logit; the earlier of ties."""
    scores, labels = (torch.cat(part, dim=1) for part in zip(*((c.scores, c.labels) for c in candidates), strict=True))
    best = top_candidates(scores, labels, k)
    return Ranking(probabilities(best.scores) * (best.labels >= 0), best.labels)
