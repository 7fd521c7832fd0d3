"""Rank the documents of a split outside a trainer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from datamodules import Batch, TextDataModule
from heads import Ranking
from zoo.core.console import progress_bar

TITLES = {"val": "Ranking validation documents", "test": "Ranking test documents"}


@torch.no_grad()
def rank_split(data: TextDataModule, split: str, rank: Callable[[Batch], Ranking], depth: int) -> Ranking:
    """Rank all documents of a split, in corpus order, on the CPU."""
    count = len(data.prepared.rows(split))
    scores, labels = torch.zeros(count, depth), torch.full((count, depth), -1)
    loader = data.pass_dataloader(split)
    with progress_bar(TITLES[split]) as begin:
        advance = begin(len(loader))
        for batch in loader:
            found = rank(batch)
            width = found.labels.shape[1]
            scores[batch.rows, :width] = found.scores.float().cpu()
            labels[batch.rows, :width] = found.labels.cpu()
            advance(1)
    return Ranking(scores, labels)
