"""Search for the labels with the largest scores: exact, or approximate with a graph of neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heads.base import Ranking, top_labels
from zoo.core.errors import UserError
from zoo.core.extras import missing_extra

BLOCK = 2**24  # scores that are computed at a time
LINKS, BUILD, SEARCH = 32, 200, 4  # of the graph: links of a label, candidates when it is built, and per wanted label


def exact(queries: Tensor, vectors: Tensor, k: int) -> Ranking:
    """The k vectors with the largest dot product with each query, the first of ties, block by block of documents."""
    size = max(1, BLOCK // max(len(vectors), 1))
    tops = [top_labels(part @ vectors.T, k) for part in torch.split(queries, size)]
    return Ranking(torch.cat([top.scores for top in tops]), torch.cat([top.labels for top in tops]))


class Graph:
    """Approximate search by hierarchical navigable small worlds (Malkov and Yashunin 2016), with hnswlib.

    Args:
        vectors: (labels, width).
        labels: number of each vector.
        seed: of the levels of the graph.
    """

    def __init__(self, vectors: Tensor, labels: Tensor, seed: int = 0) -> None:
        try:
            import hnswlib
        except ImportError as error:
            raise missing_extra(error, "search") from error
        self.index: Any = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self.index.init_index(max_elements=max(len(vectors), 1), M=LINKS, ef_construction=BUILD, random_seed=seed)
        # With several threads, the graph would depend on their order.
        self.index.add_items(vectors.detach().float().cpu().numpy(), labels.cpu().numpy(), num_threads=1)
        self.size = len(vectors)

    def search(self, queries: Tensor, k: int) -> Ranking:
        """As `exact`, except for labels that the search does not reach."""
        wanted = min(k, self.size)
        if wanted == 0:
            raise UserError("no label has a text or a classifier row: nothing can be found")
        self.index.set_ef(max(SEARCH * wanted, BUILD))
        labels, distances = self.index.knn_query(queries.detach().float().cpu().numpy(), wanted, num_threads=1)
        found = Ranking(1 - torch.from_numpy(distances), torch.from_numpy(labels.astype("int64")))
        best = top_labels(found.scores, k)
        known = found.labels.gather(1, best.labels.clamp_min(0))
        return Ranking(best.scores, known.masked_fill(best.labels < 0, -1))


def recall(found: Tensor, wanted: Tensor) -> Tensor:
    """Share of the wanted labels (docs, k) that were found (docs, any), (docs,)."""
    there = (wanted.unsqueeze(2) == found.unsqueeze(1)).any(2) & (wanted >= 0)
    return there.sum(1) / (wanted >= 0).sum(1).clamp_min(1)
