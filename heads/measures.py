"""What heads do with rankings of others: order them anew, cut, look up and measure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from datamodules.batch import Targets
from datamodules.errors import UserError
from heads.base import Ranking

STEP = 2**13  # documents whose candidates are looked up at a time


@dataclass(frozen=True)
class Measure:
    """The mean of hits / k (P), or the share of the inverse propensity that can be had (PSP).

    Both are one sum over documents divided by another: sums of several processes add up. A document without labels
    counts nowhere.
    """

    name: str
    k: int

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        found = re.fullmatch(r"(P|PSP)@([1-9]\d*)", text)
        if not found:
            raise UserError(f"--model.head.{option}={text} cannot be measured here: give P@k or PSP@k, such as PSP@5")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.name}@{self.k}"

    def reached(self, labels: Tensor, hits: Tensor, weights: Tensor) -> Tensor:
        """Sum over documents, () double, of ranked labels of which `hits` are right; both (batch, >= k or fewer)."""
        hits = hits[:, : self.k].double()
        if self.name == "P":
            return hits.sum() / self.k
        return (hits * weights[labels[:, : self.k].clamp_min(0)]).sum()

    def possible(self, targets: Targets, weights: Tensor) -> Tensor:
        """What it is divided by, () double."""
        if self.name == "P":
            return (targets.counts > 0).sum().double()
        place = torch.arange(len(targets.indices), device=targets.indices.device) - targets.indptr[targets.rows]
        longest = int(targets.counts.max()) if len(targets) else 0
        padded = weights.new_zeros(len(targets), max(self.k, longest))
        padded[targets.rows, place] = weights[targets.indices]
        return padded.topk(self.k).values.sum()


def relevant(labels: Tensor, targets: Targets) -> Tensor:
    """Which of the labels (documents, K) their document carries, (documents, K) bool; -1 never is one."""
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


def in_order(scores: Tensor, labels: Tensor) -> Ranking:
    """By falling score; equal ones stay in the order that they have, and fills stay last."""
    order = scores.masked_fill(labels < 0, -math.inf).argsort(dim=1, descending=True, stable=True)
    return Ranking(scores.gather(1, order), labels.gather(1, order))


def cut(ranking: Ranking, k: int) -> Ranking:
    return Ranking(ranking.scores[:, :k], ranking.labels[:, :k])
