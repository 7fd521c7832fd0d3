"""Candidate labels of documents, from the rankings of several heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.batch import Batch
from heads.base import Ranking
from heads.tail.platt import NEAR, logits_of
from heads.tail.wide import look_up
from zoo.core.errors import UserError


@dataclass(frozen=True)
class Candidates:
    """Candidate labels of a batch of documents, on the CPU.

    Attributes:
        labels: (docs, K) distinct labels, padded with -1.
        logits: (docs, K, members) double; a label that a member has not ranked has the lowest of that member's list.
        ranks: (docs, K, members) places in the members' lists, from 0; the last one if absent.
        proposed: (docs, K, members) whether the member has ranked the label.
        batch: words of the documents.
    """

    labels: Tensor
    logits: Tensor
    ranks: Tensor
    proposed: Tensor
    batch: Batch | None

    @property
    def known(self) -> Tensor:
        """False on padding, (docs, K)."""
        return self.labels >= 0

    @property
    def mean(self) -> Tensor:
        """Mean logit of the members, -inf on padding, (docs, K)."""
        return self.logits.mean(-1).masked_fill(~self.known, -torch.inf)

    @property
    def words(self) -> Batch:
        if self.batch is None:
            raise UserError("Blend reads words: `features.batch` is missing")
        return self.batch


def union(rankings: Sequence[Ranking], batch: Batch | None = None) -> Candidates:
    """Candidates of all rankings, in the order of the first, then of the next, and so on."""
    rankings = [Ranking(ranking.scores.cpu(), ranking.labels.cpu()) for ranking in rankings]
    parts: list[Tensor] = []
    for number, ranking in enumerate(rankings):
        repeated = [look_up(earlier, ranking.labels)[1] for earlier in rankings[:number]]
        parts.append(ranking.labels.masked_fill(torch.stack([*repeated, ranking.labels < 0]).any(0), -1))
    labels = torch.cat(parts, dim=1)
    order = (labels < 0).long().argsort(dim=1, stable=True)  # padding last
    labels = labels.gather(1, order)[:, : max(int((labels >= 0).sum(1).max()), 1)]
    logits, ranks, proposed = [], [], []
    for ranking in rankings:
        scores, there = look_up(ranking, labels)
        places = -torch.arange(ranking.labels.shape[1]).expand_as(ranking.labels).float()
        logits.append(logits_of(scores, NEAR))
        ranks.append(-look_up(Ranking(places, ranking.labels), labels)[0])
        proposed.append(there)
    return Candidates(labels, torch.stack(logits, -1), torch.stack(ranks, -1), torch.stack(proposed, -1), batch)
