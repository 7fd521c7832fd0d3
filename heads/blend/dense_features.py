"""Features of pairs from document vectors of the backbone: neighbors in its space, and label texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.base import Ranking, TransitionContext, top_labels
from heads.blend.candidate_union import Candidates
from heads.blend.features import PairFeatures
from heads.blend.sparse import DENSE, pack, unpack, values_at
from heads.tree.label_tree import label_matrix
from zoo.core.errors import UserError, check_range, check_width

STEEPEST = 64  # largest power of a cosine


class DenseFeatures(PairFeatures):
    """Base class of groups that read the backbone's document vectors, which must not change after `learn`.

    The vectors of a pretrained encoder come from `WordTransformer`, beside the words that other groups read, or from
    `Transformer`. Vectors that are kept have unit length, in half precision.
    """

    here: Tensor  # (0,) on the device of all-reduces

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__(space, members)
        self.register_buffer("here", torch.zeros(0), persistent=False)

    def _width(self, ctx: TransitionContext) -> int:
        dim = 0 if ctx.backbone is None else ctx.backbone.dim
        if dim < 2:
            raise UserError(f"{type(self).__name__} needs a backbone with document vectors, such as WordTransformer")
        return dim

    def _documents(self, candidates: Candidates, dim: int) -> Tensor:
        """Vectors of the documents, (docs, dim), of unit length."""
        vectors = None if candidates.batch is None else candidates.batch.vectors
        if vectors is None or vectors.shape[1] != dim:
            what = "there are none" if vectors is None else f"these have {vectors.shape[1]}"
            raise UserError(f"{type(self).__name__} reads document vectors of {dim} dimensions, and {what}")
        return F.normalize(vectors.float().cpu(), dim=1)


class DenseNeighbours(DenseFeatures):
    """Share of the label among the training documents with the nearest vectors, and the best cosines.

    The share is weighted by a power of the cosine. The best cosine is that of the nearest document with the label, and
    of the nearest one.

    Args:
        k: number of neighbors.
        power: power of the cosine; in the space of an encoder, all neighbors have similar ones.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str], k: int = 40, power: float = 8.0) -> None:
        super().__init__(space, members)
        check_width(k=k)
        check_range(0.1, STEEPEST, power=power)
        self.k, self.power = k, power
        self.names = ["dense_votes", "dense_best_with_label", "dense_cosine"]
        self.vectors: Tensor | None = None  # (documents, dim) half
        self.labels: csr_array | None = None  # (documents, num_labels)

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        self.vectors = unit(ctx.train_vectors(self._width(ctx), self.here.device)[rows])
        self.labels = label_matrix(ctx.train_targets().to("cpu").take(rows), self.num_labels)

    def forward(self, candidates: Candidates) -> Tensor:
        assert self.vectors is not None
        near = nearest_vectors(self._documents(candidates, self.vectors.shape[1]), self.vectors, self.k)
        labels, documents = (part.clamp_min(0).numpy() for part in (candidates.labels, near.labels))
        found = values_at(self.labels, documents[:, :, None], labels[:, None]) > 0  # (docs, k, K)
        has, cosines = torch.from_numpy(found).double(), near.scores.double().clamp_min(0)
        weights = cosines**self.power * (near.labels >= 0)
        shares = weights / weights.sum(1, keepdim=True).clamp_min(1e-12)
        votes = torch.einsum("dn,dnk->dk", shares, has)
        best = (cosines.unsqueeze(2) * has).amax(1)
        return torch.stack([votes, best, cosines[:, :1].expand_as(votes)], dim=-1).float()

    def get_extra_state(self) -> dict[str, Any] | None:
        if self.vectors is None or self.labels is None:
            return None
        return {"vectors": self.vectors, "labels": pack(self.labels)}

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        self.vectors = self.labels = None
        if state is not None:
            what = "the document vectors"
            labels = unpack(state.get("labels"), what, None, self.num_labels)
            self.vectors, self.labels = checked(state.get("vectors"), what, labels.shape[0]), labels


class LabelTexts(DenseFeatures):
    """Cosine of the label's text with the document, and its gap to the best candidate's; unknown without a text.

    The text is the label's description, or else its name, encoded as a document.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__(space, members)
        self.names = ["label_text_cosine", "label_text_gap"]
        self.vectors: Tensor | None = None  # (num_labels, dim) half; 0 for labels without a text

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        table = self.here.new_zeros(self.num_labels, self._width(ctx))
        for features, batch in ctx.label_features(unseen=True):
            counted = batch.rows >= 0  # the rest is padding of processes
            table[batch.rows[counted]] = features.pooled[counted].float().to(table.device)
        self.vectors = unit(ctx.sum(table))  # rows of other processes are zeros

    def forward(self, candidates: Candidates) -> Tensor:
        assert self.vectors is not None
        own = self.vectors[candidates.labels.clamp_min(0)].double()  # (docs, K, dim)
        cosines = torch.einsum("dkw,dw->dk", own, self._documents(candidates, own.shape[2]).double())
        known = candidates.known & own.any(2)
        best = cosines.masked_fill(~known, -torch.inf).amax(1, keepdim=True)
        found = torch.stack([cosines, cosines - best], dim=-1)
        return found.masked_fill(~known.unsqueeze(2), torch.nan).float()

    def get_extra_state(self) -> dict[str, Any] | None:
        return None if self.vectors is None else {"vectors": self.vectors}

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        given = None if state is None else state.get("vectors")
        self.vectors = None if state is None else checked(given, "the vectors of label texts", self.num_labels)


def unit(vectors: Tensor) -> Tensor:
    """Vectors of unit length in half precision, on the CPU."""
    return F.normalize(vectors.float().cpu(), dim=1).half()


def nearest_vectors(queries: Tensor, vectors: Tensor, k: int) -> Ranking:
    """The k vectors with the largest dot product with each query, the first of ties; padded with -1."""
    size = max(1, DENSE // max(len(vectors), 1))
    index = vectors.float().T
    tops = [top_labels(part @ index, k) for part in torch.split(queries, size)]
    return Ranking(torch.cat([top.scores for top in tops]), torch.cat([top.labels for top in tops]))


def checked(vectors: Any, what: str, rows: int) -> Tensor:
    """The vectors of a checkpoint; a `UserError` if they are damaged."""
    known = isinstance(vectors, Tensor) and vectors.layout == torch.strided and vectors.dtype == torch.float16
    if not known or vectors.ndim != 2 or len(vectors) != rows or not np.isfinite(vectors.cpu().numpy()).all():
        raise UserError(f"{what} of the checkpoint: damaged, or not those of {rows:,} rows")
    found: Tensor = vectors.cpu()
    return found
