"""Candidates of many documents with their features, as the ranker learns from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.batch import Batch
from heads.base import Ranking, TransitionContext, probabilities, top_candidates
from heads.blend.candidate_union import union
from heads.blend.features import FeatureGroups
from heads.tail.rankings import relevant

STEP = 2**20  # pairs per all-reduce


@dataclass(frozen=True)
class Pairs:
    """Candidate labels of documents, document by document.

    Attributes:
        inputs: (pairs, features) features, NaN if unknown.
        labels: (pairs,) the candidates.
        hits: (pairs,) 1 for labels of the document, else 0.
        sizes: (docs,) number of candidates of each document.
    """

    inputs: Tensor
    labels: Tensor
    hits: Tensor
    sizes: Tensor

    def take(self, documents: Tensor) -> Pairs:
        starts, sizes = self.sizes.cumsum(0) - self.sizes, self.sizes[documents]
        places = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        rows = starts[documents].repeat_interleave(sizes) + places
        return Pairs(self.inputs[rows], self.labels[rows], self.hits[rows], sizes)

    def ranking(self, logits: Tensor, k: int) -> Ranking:
        """Rank the candidates by logits (pairs,)."""
        there = torch.arange(k) < self.sizes[:, None]
        scores, labels = torch.full(there.shape, -torch.inf), torch.full(there.shape, -1)
        scores[there], labels[there] = logits.float(), self.labels
        best = top_candidates(scores, labels, k)
        return Ranking(probabilities(best.scores) * (best.labels >= 0), best.labels)


# Documents (docs,), numbers of their pairs (docs,), and features, labels and hits of the pairs (pairs, features + 2).
Examples = tuple[Tensor, Tensor, Tensor]


def examples(groups: FeatureGroups, found: Iterable[tuple[Batch, Sequence[Ranking]]]) -> Iterator[Examples]:
    """Features, labels and hits of the candidates of batches that the members have ranked."""
    for batch, rankings in found:
        candidates = union(rankings, batch)
        known = candidates.known
        hits = relevant(candidates.labels, batch.targets.to("cpu"))[known]
        values = torch.cat([groups(candidates), candidates.labels[known][:, None], hits[:, None]], dim=1)
        yield batch.rows.cpu(), known.sum(1), values


def take(rankings: Sequence[Ranking], rows: Tensor) -> list[Ranking]:
    return [Ranking(ranking.scores[rows], ranking.labels[rows]) for ranking in rankings]


def collect(examples: Iterable[Examples], size: int, width: int, ctx: TransitionContext, device: torch.device) -> Pairs:
    """Gather the pairs of `size` documents of all processes, in corpus order, on every process."""
    own = list(examples)
    counts = torch.zeros(size, dtype=torch.long)
    for rows, sizes, _ in own:
        counts[rows] = sizes
    counts = ctx.sum(counts.to(device)).cpu()
    starts = counts.cumsum(0) - counts
    table = torch.zeros(int(counts.sum()), width + 2)  # labels are exact: below 2^24
    for rows, sizes, values in own:
        places = torch.arange(len(values)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        table[starts[rows].repeat_interleave(sizes) + places] = values
    for part in torch.split(table, STEP):  # rows of other processes are zeros
        part.copy_(ctx.sum(part.to(device)))
    return Pairs(table[:, :width], table[:, width].long(), table[:, width + 1], counts)
