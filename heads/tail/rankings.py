"""Sort, truncate, look up and evaluate rankings of other heads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Neighbors, Ranking
from zoo.core.errors import UserError, check_width
from zoo.core.metrics import CORPUS_METRICS, DOCUMENT_METRICS, RANKING_METRICS, RankedDocuments
from zoo.core.ragged import Lists

STEP = 2**13  # documents whose candidates are looked up at a time

Metric = tuple[str, int]  # name in `RANKING_METRICS` and k


class CandidateHead(Head):
    """Base class of heads that score the best `candidates` labels of `inner` again; implement `loss` and `rank`."""

    def __init__(self, dim: int, space: LabelSpace, inner: Callable[[int, LabelSpace], Head], candidates: int) -> None:
        super().__init__(dim, space)
        check_width(candidates=candidates)
        # What scores candidates again has no values for labels without training documents.
        self.inner, self.candidates = inner(dim, replace(space, unseen_texts=[])), candidates
        self.needs_tokens, self.needs_layers = self.inner.needs_tokens, self.inner.needs_layers

    def depth(self, k: int) -> int:
        """Number of labels to ask the inner head for."""
        return max(min(self.candidates, self.num_labels), k)

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(features, targets)

    def weight_norms(self) -> Tensor | None:
        return self.inner.weight_norms()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.attention_weights(features, labels)

    def token_contributions(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.token_contributions(features, labels)

    def neighbors(self, features: Features, labels: Tensor) -> Neighbors | None:
        return self.inner.neighbors(features, labels)


def parse_metric(text: str, setting: str) -> Metric:
    """Name and k of a metric such as PSP@5."""
    found = re.fullmatch(rf"({'|'.join(RANKING_METRICS)})@([1-9]\d*)", text)
    if not found:
        known = ", ".join(RANKING_METRICS)
        raise UserError(f"`{setting}={text}` is not a ranking metric: give one of {known} with a k, such as PSP@5")
    return found[1], int(found[2])


def metric_sums(labels: Tensor, targets: Targets, weights: np.ndarray, metrics: tuple[Metric, ...]) -> np.ndarray:
    """Numerator and denominator of each metric, summed over documents with labels, (metrics, 2).

    Sums of several batches and processes add up; `weights` are inverse propensities, (num_all,).
    """
    labels, truth, kept = labels.cpu(), targets.to("cpu"), (targets.counts > 0).cpu()
    labels, truth = labels[kept], truth.take(kept.nonzero().flatten())
    known = labels >= 0
    found = Lists.of_sizes(known.sum(1).numpy(), labels[known].long().numpy())
    ranked = RankedDocuments(Lists(truth.indptr.numpy(), truth.indices.numpy()), found, weights)
    sums = []
    for name, k in metrics:
        if name in DOCUMENT_METRICS:
            sums.append((DOCUMENT_METRICS[name](ranked, k).sum(), len(ranked)))
        else:
            reached, possible = CORPUS_METRICS[name](ranked, k)
            sums.append((reached.sum(), possible.sum()))
    return np.array(sums, dtype=np.float64)


def relevant(labels: Tensor, targets: Targets) -> Tensor:
    """Whether each of the labels (docs, K) is one of its document's, (docs, K) bool; False on padding, -1."""
    found = torch.zeros_like(labels, dtype=torch.bool)
    width = int(targets.indices.max()) + 1 if len(targets.indices) else 0
    for first in range(0, len(labels) if width else 0, STEP):
        part = labels[first : first + STEP].long()
        indptr = targets.indptr[first : first + len(part) + 1]
        own = Targets(indptr - indptr[0], targets.indices[int(indptr[0]) : int(indptr[-1])])
        if len(own.indices):
            wanted = torch.arange(len(part), device=part.device)[:, None] * width + part
            present = own.rows * width + own.indices  # ascending
            at = torch.searchsorted(present, wanted).clamp_max(len(present) - 1)
            found[first : first + STEP] = (present[at] == wanted) & (part >= 0) & (part < width)
    return found


def sort_by_score(scores: Tensor, labels: Tensor) -> Ranking:
    """Sort candidates (docs, K) by descending score; stable, with padding last."""
    order = scores.masked_fill(labels < 0, -math.inf).argsort(dim=1, descending=True, stable=True)
    return Ranking(scores.gather(1, order), labels.gather(1, order))


def truncate(ranking: Ranking, k: int) -> Ranking:
    return Ranking(ranking.scores[:, :k], ranking.labels[:, :k])
