"""The head contract: a loss for training, a ranking for everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets


@dataclass(frozen=True)
class Ranking:
    """The best k labels of each document, best first; rows with fewer candidates end in label -1, score 0."""

    scores: Tensor  # (batch, k), probabilities
    labels: Tensor  # (batch, k) int64


class Head(nn.Module, ABC):
    """Scores labels from features. `DenseHead` is the short way to a new one."""

    needs_tokens: bool = False  # True: refuses a backbone that has no token states

    def __init__(self, dim: int, space: LabelSpace) -> None:
        super().__init__()
        self.dim, self.num_labels = dim, space.num_labels

    @abstractmethod
    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Loss terms of a stage; the one to minimise is `loss`. Sum over labels, mean over documents."""

    @abstractmethod
    def rank(self, features: Features, k: int) -> Ranking:
        """The k best labels."""


class DenseHead(Head):
    """A head with one logit for each label: write `forward`, get loss and ranking."""

    @abstractmethod
    def forward(self, features: Features) -> Tensor:
        """Logits (batch, num_labels)."""

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return {"loss": bce(self(features), targets)}

    def rank(self, features: Features, k: int) -> Ranking:
        # by logit: the sigmoid of sure labels rounds to one and the same number
        top = top_labels(self(features).float(), k)
        return Ranking(top.scores.sigmoid() * (top.labels >= 0), top.labels)


def bce(logits: Tensor, targets: Targets) -> Tensor:
    """Binary cross-entropy, summed over labels and averaged over documents: the zoo's one convention.

    Equals sum softplus(x) - sum over positives of x, so that no dense target matrix is needed.
    """
    logits = logits.float()
    last = logits.shape[1] - 1
    positives = logits[targets.rows, targets.indices.clamp_max(last)] * (targets.indices <= last)
    return (F.softplus(logits).sum() - positives.sum()) / len(logits)


def top_labels(scores: Tensor, k: int) -> Ranking:
    """The k largest of dense scores (batch, labels); short rows are filled with label -1."""
    size = min(k, scores.shape[1])
    values, labels = scores.topk(size, dim=1)
    # Of equal scores topk takes any, in any order: lower labels, the more frequent ones, are to go first.
    labels, by_label = labels.sort(dim=1)
    values, best = values.gather(1, by_label).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, best)
    cut_among_equals = (scores >= values[:, -1:]).sum(1) > size
    if cut_among_equals.any():
        ordered = scores[cut_among_equals].sort(dim=1, descending=True, stable=True)
        labels[cut_among_equals] = ordered.indices[:, :size]
    short = (0, k - size)
    return Ranking(F.pad(values, short), F.pad(labels, short, value=-1))
