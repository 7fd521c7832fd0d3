"""APLC: frequent labels are scored at full width, rarer ones in clusters that few documents of a batch train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, bce, check_low, probabilities, top_labels

HIGHEST = 0.99  # of the probabilities to begin with: nearer to 1, a sigmoid takes long to come down


class AdaptiveClusters(Head):
    """Probabilistic label clusters: a rare label's probability is its cluster's times its own within the cluster.

    After Ye et al. 2020, "Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification". A cluster's labels are trained on the documents that have some of them.

    Args:
        cutoffs: where clusters begin after the first, as shares of the labels (below 1) or label numbers; the paper
            has [0.5], or [0.25, 0.5, 0.75] for the largest label sets.
        shrink: the n-th cluster after the first is scored from vectors shrink^n times narrower (q).
        hidden: width of a layer with tanh before all clusters; none by default.
        dropout: of the document's vector, and of the narrower ones.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        cutoffs: Sequence[int | float] = (0.5,),
        shrink: int = 2,
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, space)
        check_low(1, shrink=shrink, hidden=hidden)
        self.bounds = label_bounds(cutoffs, space.num_labels)
        width, sizes = hidden or dim, [high - low for low, high in pairwise(self.bounds)]
        widths = [width // shrink**n for n in range(1, len(sizes))]
        if widths[-1] < 2:  # layer normalization of one number is always zero
            raise UserError(f"--model.head.shrink={shrink} makes cluster widths {widths} of {width}: the lowest is 2")
        self.project = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh()) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        priors = torch.split(space.prior(), sizes)
        some = [any_of(prior) for prior in priors[1:]]
        conditional = [(prior / p).clamp_max(HIGHEST) for prior, p in zip(priors[1:], some, strict=True)]
        self.first = linear(width, torch.cat([priors[0], torch.stack(some)]))  # its labels, then the other clusters
        self.tails = nn.ModuleList(
            nn.Sequential(nn.Linear(width, narrow), nn.LayerNorm(narrow), nn.Dropout(dropout), linear(narrow, within))
            for narrow, within in zip(widths, conditional, strict=True)
        )

    def encode(self, features: Features) -> Tensor:
        """The vectors (batch, width) that all clusters read."""
        vectors: Tensor = self.dropout(self.project(features.pooled))
        return vectors

    def first_logits(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the first cluster's labels, and those of the other clusters."""
        logits: Tensor = self.first(vectors).float()
        return logits[:, : self.bounds[1]], logits[:, self.bounds[1] :]

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        vectors = self.encode(features)
        labels, clusters = self.first_logits(vectors)
        absent, tails = torch.ones_like(clusters), []
        for i, (low, high) in enumerate(pairwise(self.bounds[1:])):
            inside = (targets.indices >= low) & (targets.indices < high)
            rows = targets.rows[inside]
            absent[rows, i] = 0
            tails.append(self.tail_loss(i, vectors, clusters[:, i], rows, targets.indices[inside] - low))
        # A document without labels of a cluster trains the cluster's logit alone, others all that makes up the product.
        head = bce(labels, targets) + (F.softplus(clusters) * absent).sum() / len(vectors)
        tail = torch.stack(tails).sum() / len(vectors)
        return {"loss": head + tail, "head": head, "tail": tail}

    def tail_loss(self, tail: int, vectors: Tensor, clusters: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of a cluster's labels, summed, of the documents that have some: `rows` have `labels`."""
        # Where no document has any, none goes through the layers: their gradient is zero, not absent as DDP forbids.
        documents, row = torch.unique(rows, return_inverse=True)
        logits = product_logit(clusters[documents].unsqueeze(1), self.tails[tail](vectors[documents]).float())
        return F.softplus(logits).sum() - logits[row, labels].sum()

    def rank(self, features: Features, k: int) -> Ranking:
        with torch.autocast(features.pooled.device.type, enabled=False):
            vectors = self.encode(features.float())
            labels, clusters = self.first_logits(vectors)
            candidates = [top_labels(labels, min(k, labels.shape[1]))]
            for i, tail in enumerate(self.tails):
                logits = tail(vectors).float()
                # By logit within the cluster: times an unsure cluster, the probabilities of sure labels round to ties.
                best = top_labels(logits, min(k, logits.shape[1]))
                scores = product_logit(clusters[:, i : i + 1], best.scores)
                candidates.append(Ranking(scores, best.labels + self.bounds[i + 1]))
        return merge(candidates, k)


def label_bounds(cutoffs: Sequence[int | float], num_labels: int) -> list[int]:
    """The first label of each cluster, and the number of labels at the end."""
    setting, bounds = f"--model.head.cutoffs={list(cutoffs)}", [0]
    for cutoff in cutoffs:
        if not cutoff > 0 or (cutoff > 1 and cutoff % 1 != 0):
            raise UserError(f"{setting}: {cutoff} is neither a share of the labels, below 1, nor a label number")
        bounds.append(int(cutoff) if cutoff >= 1 else math.floor(cutoff * num_labels + 1e-9))
    bounds.append(num_labels)
    if len(bounds) == 2:
        raise UserError(f"{setting}: give at least one cutoff")
    if any(high <= low for low, high in pairwise(bounds)):
        parts = ", ".join(f"{low} to {high}" for low, high in pairwise(bounds))
        raise UserError(f"{setting} parts {num_labels} labels into {parts}: cutoffs have to rise, no part may be empty")
    return bounds


def any_of(priors: Tensor) -> Tensor:
    """The prior of having any of some labels, as if they came independently of one another."""
    return (-(-priors.double()).log1p().sum().expm1()).clamp_max(HIGHEST).float()


def linear(width: int, priors: Tensor) -> nn.Linear:
    """Classifiers that begin at these probabilities."""
    layer = nn.Linear(width, len(priors))
    with torch.no_grad():
        layer.bias.copy_(priors.logit())
    return layer


def product_logit(one: Tensor, other: Tensor) -> Tensor:
    """The logit of sigmoid(one) * sigmoid(other), also where these round to 0 or 1."""
    # 1 / product - 1 = (1 + e^-a) (1 + e^-b) - 1
    return -torch.logaddexp(torch.logaddexp(-one, -other), -one - other)


def merge(candidates: Sequence[Ranking], k: int) -> Ranking:
    """The k best of rankings by logit; of equal ones the earlier."""
    best = top_labels(torch.cat([ranking.scores for ranking in candidates], dim=1), k)
    known = best.labels >= 0
    labels = torch.cat([ranking.labels for ranking in candidates], dim=1).gather(1, best.labels.clamp_min(0))
    return Ranking(probabilities(best.scores) * known, labels.where(known, -1))
