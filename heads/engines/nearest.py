"""Votes of the most similar training documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import NEIGHBORS, Neighbors, Ranking, TransitionContext
from heads.blend.sparse import nearest, pack, pack_texts, unpack, unpack_texts, votes, widened, with_labels
from heads.engines.linear_engine import Documents, LinearEngine
from heads.tree.label_tree import label_matrix
from zoo.core.errors import UserError, check_range, check_width

MAX_POWER = 100  # then only the nearest neighbour counts


class NearestNeighbours(LinearEngine):
    """Ranks labels by their share among the k most similar training documents, weighted by a power of the cosine.

    The score of a label is the sum of cos^power over the neighbours that have it, divided by the sum over all of them.
    Nothing is trained: `fit` keeps the features of the training documents.

    Args:
        k: number of neighbours.
        power: exponent of the cosine.
        words: arguments of `LinearEngine`.
    """

    def __init__(self, dim: int, space: LabelSpace, k: int = 40, power: float = 2.0, **words: Any) -> None:
        super().__init__(dim, space, **words)
        check_width(k=k)
        check_range(1e-9, MAX_POWER, power=power)
        self.k, self.power = k, power
        self.settings |= {"k": k, "power": power}
        self.index: csr_array | None = None  # (features, documents)
        self.labels: csr_array | None = None  # (documents, num_labels)
        self.ids: list[str] = []  # of the documents; empty if unknown

    @property
    def fitted(self) -> bool:
        return self.index is not None

    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        if ctx.first:
            self.index, self.labels = csr_array(words.T), csr_array(labels)
            self.index.sort_indices()
            self.labels.sort_indices()

    @torch.no_grad()
    def learn_labels(
        self,
        space: LabelSpace,
        examples: Iterable[tuple[Features, Targets]],
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Add the documents to those that are searched; they may have known labels too."""
        if self.index is None or self.labels is None:
            raise UserError("labels can be added only after fit: finish the training first")
        words, labels = [csr_array(self.index.T)], [widened(self.labels, space.num_labels)]
        for features, targets in examples:
            words.append(self.matrix(self._documents(features)))
            labels.append(label_matrix(targets.to("cpu"), space.num_labels))
        if self.ids:
            self.ids += [
                f"added-{number}" for number in range(len(self.ids) + 1, 1 + sum(part.shape[0] for part in words))
            ]
        self.space, self.num_labels = space, space.num_labels
        self.index, self.labels = csr_array(vstack(words).T), csr_array(vstack(labels))
        self.index.sort_indices()
        self.labels.sort_indices()

    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        assert self.index is not None
        assert self.labels is not None
        return nearest(votes(nearest(words, self.index, self.k), self.power, self.labels.shape[0]), self.labels, k)

    def _fit(self, documents: Documents, targets: Targets, rows: Tensor | None, ctx: TransitionContext) -> None:
        super()._fit(documents, targets, rows, ctx)
        self.ids = ctx.train_ids() if rows is None else []  # a part of the documents is never explained

    def neighbors(self, features: Features, labels: Tensor) -> Neighbors | None:
        if self.index is None or self.labels is None:
            return None
        found = nearest(self.matrix(self._documents(features)), self.index, self.k)
        return Neighbors(*with_labels(found, self.labels, labels.cpu().clamp_min(0).numpy(), NEIGHBORS), self.ids)

    def evidence(self, ids: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Shares of words in the cosines of the neighbours that have the label, times the votes of these."""
        assert self.index is not None
        assert self.labels is not None
        row = csr_array((values, ids, [0, len(ids)]), (1, self.index.shape[0]))
        found = nearest(row, self.index, self.k)
        known = (found.labels[0] >= 0).numpy()
        rows, cosines = found.labels[0].numpy()[known], found.scores[0].numpy()[known]
        share = self.index[ids][:, rows].toarray() * values[:, None] / cosines  # (words, neighbours)
        vote = votes(found, self.power, self.labels.shape[0])[[0]][:, rows].toarray()
        weighted = self.labels[rows][:, labels].toarray().T * vote  # (labels, neighbours)
        return np.asarray(weighted @ share.T)

    def get_extra_state(self) -> dict[str, Any] | None:
        if self.index is None or self.labels is None:
            return None
        ids = {"ids": pack_texts(self.ids)} if self.ids else {}
        return {"index": pack(self.index), "labels": pack(self.labels)} | ids

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        self.index, self.labels, self.ids = None, None, []
        if state is not None:
            what = "the index of training documents"
            labels = unpack(state.get("labels"), what, None, self.num_labels)
            self.index, self.labels = unpack(state.get("index"), what, self.num_features, labels.shape[0]), labels
            self.ids = unpack_texts(state.get("ids"), "the ids of training documents", labels.shape[0])
