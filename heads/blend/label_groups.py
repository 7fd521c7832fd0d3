"""Features of a pair from related candidates: those of the same cluster, and parents and children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from backbones.tfidf import tfidf
from datamodules.batch import LabelSpace
from heads.base import TransitionContext
from heads.blend.candidate_union import Candidates
from heads.blend.features import PairFeatures
from heads.blend.sparse import values_at
from heads.tree.label_tree import balanced_clusters, pifa
from zoo.core.errors import UserError, check_range


class Clusters(PairFeatures):
    """Sum and maximum of p(other) over the other candidates of the label's cluster.

    Clusters are those of a label tree: balanced 2-means of the labels' mean TF-IDF. p is the sigmoid of the members'
    mean logit.

    Args:
        size: about the number of labels of a cluster.
        seed: random seed of the clustering.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str], size: int = 16, seed: int = 0) -> None:
        super().__init__(space, members)
        check_range(2, 2**16, size=size)
        check_range(0, 2**32 - 1, seed=seed)
        self.names, self.use_idf, self.seed = ["cluster_sum", "cluster_max"], space.idf, seed
        self.depth = max((self.num_labels // size).bit_length() - 1, 0)
        self.cluster_of: Tensor | None = None  # (num_labels,)

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        words = tfidf(ctx.train_words()[rows.numpy()], self.use_idf)
        labels = pifa(words, ctx.train_targets().to("cpu").take(rows), self.num_labels)
        self.cluster_of = torch.from_numpy(balanced_clusters(labels, self.depth, self.seed).astype(np.int32))

    def forward(self, candidates: Candidates) -> Tensor:
        assert self.cluster_of is not None
        cluster = self.cluster_of[candidates.labels.clamp_min(0)]
        together = (cluster.unsqueeze(1) == cluster.unsqueeze(2)) & ~torch.eye(cluster.shape[1], dtype=torch.bool)
        return among(candidates, together)

    def get_extra_state(self) -> dict[str, Any] | None:
        return None if self.cluster_of is None else {"cluster_of": self.cluster_of}

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        found = None if state is None else state.get("cluster_of")
        if state is not None and (
            not isinstance(found, Tensor) or found.dtype != torch.int32 or found.shape != (self.num_labels,)
        ):
            raise UserError("the clusters of the checkpoint are damaged")
        self.cluster_of = found


class Hierarchy(PairFeatures):
    """Sum and maximum of p(other) over the label's parents, and over its children, among the candidates.

    Parents are in the label-description file; without any, all features are unknown. p is the sigmoid of the members'
    mean logit.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__(space, members)
        self.names = ["parents_sum", "parents_max", "children_sum", "children_max"]
        pairs = np.array(space.parents, dtype=np.int64).reshape(-1, 2)
        shape = (self.num_labels, self.num_labels)
        self.parents = csr_array(coo_array((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), shape))
        self.parents.sort_indices()

    def forward(self, candidates: Candidates) -> Tensor:
        if not self.parents.nnz:
            return torch.full((*candidates.labels.shape, len(self.names)), torch.nan)
        labels = candidates.labels.clamp_min(0).numpy()
        above = torch.from_numpy(values_at(self.parents, labels[:, None, :], labels[:, :, None]) > 0)  # [doc, i, j]
        return torch.cat([among(candidates, above.transpose(1, 2)), among(candidates, above)], dim=-1)


def among(candidates: Candidates, related: Tensor) -> Tensor:
    """Sum and maximum of p(other) over the related candidates `related[doc, i, other]`, (docs, K, 2)."""
    chances = candidates.mean.sigmoid().unsqueeze(1) * related  # 0 on padding
    return torch.stack([chances.sum(-1), chances.amax(-1)], dim=-1).float()
