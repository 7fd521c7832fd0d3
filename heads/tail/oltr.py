"""OLTR: a memory of label centroids enriches document vectors, and a cosine classifier reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import DenseHead, TransitionContext
from heads.loss_base import MakeLoss
from heads.transfer.transfer_map import cell_means, label_pairs
from zoo.core.errors import check_low, check_width

REPEL = 0.01  # weight of the repelling term within the centroid loss, as in the authors' code


class OLTR(DenseHead):
    r"""Dynamic meta-embedding with a memory of label centroids, under a cosine classifier.

    Liu et al. 2019, "Large-Scale Long-Tailed Recognition in an Open World" (https://arxiv.org/abs/1904.05160). A first
    stage trains the encoder with the linear classifier :math:`T`. `build_memory` then sets the centroid :math:`c_l` of
    each label to the mean of its documents' vectors, and the next stage trains everything. With the vector :math:`v` of
    a document,

    .. math::
        v^{memory} &= \sum_l o_l c_l, \quad o = \operatorname{softmax}(T v) \\
        v^{meta} &= \tfrac{\rho}{\gamma} (v + e \odot v^{memory}), \quad e = \tanh(E v), \quad
            \gamma = \min_l |v - c_l| \\
        x_l &= s \left\langle \frac{v^{meta}}{1 + |v^{meta}|}, \frac{w_l}{|w_l|} \right\rangle + b_l

    where :math:`T` starts as the classifier of the first stage, as in the authors' code, and :math:`\gamma` is the
    distance to what training has seen (reachability). The loss is that of :math:`x` plus `centroid_weight` times

    .. math:: \tfrac{1}{2} \sum_{l \in y} |v - c_l|^2 + 0.01 \max\left(0, m - \tfrac{1}{L}
        \sum_{l \notin y} |v - c_l|^2\right)

    The paper is about one label per image. Changes: a document is attracted by the centroids of all its labels; binary
    cross-entropy in place of the softmax, which needs the biases :math:`b_l`, since a label's logit is no longer
    relative to others; centroids follow the gradient, which the authors' code divides by the label's number of
    documents in the batch; no attention over image regions. Rejection of unknown classes is left out.

    Args:
        hidden: width of the document vector v.
        scale: scale of the cosine classifier (s); 16 in the authors' code.
        reach: factor of the inverse distance to the nearest centroid (rho); 10 in the authors' code.
        centroid_weight: weight of the centroid loss; 0.01 in the authors' code.
        margin: mean squared distance to the centroids of other labels from which nothing repels (m).
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    known: Tensor  # (num_labels,) bool, labels with a centroid
    ready: Tensor  # () bool, `build_memory` has run

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        hidden: int = 128,
        scale: float = 16.0,
        reach: float = 10.0,
        centroid_weight: float = 0.01,
        margin: float = 10.0,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space, loss)
        check_width(hidden=hidden)
        check_low(1e-9, scale=scale, reach=reach)
        check_low(0, centroid_weight=centroid_weight, margin=margin)
        self.scale, self.reach, self.centroid_weight, self.margin = scale, reach, centroid_weight, margin
        start = self.criterion.start_logits(space)
        self.project = nn.Linear(dim, hidden)
        self.hallucinator = nn.Linear(hidden, space.num_labels)  # T
        self.selector = nn.Linear(hidden, hidden)  # E
        self.centroids = nn.Parameter(torch.zeros(space.num_labels, hidden))
        self.weight = nn.Parameter(torch.randn(space.num_labels, hidden) / hidden**0.5)
        self.bias = nn.Parameter(start.clone())
        with torch.no_grad():
            self.hallucinator.bias.copy_(start)
        self.register_buffer("known", torch.zeros(space.num_labels, dtype=torch.bool))
        self.register_buffer("ready", torch.tensor(False))
        self.is_ready = False  # `ready` as a Python value: reading a buffer would make a GPU wait

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.is_ready = bool(self.ready)

    @property
    def pending(self) -> tuple[str, ...]:
        return () if self.is_ready else ("build_memory",)

    def forward(self, features: Features) -> Tensor:
        vectors = self.project(features.pooled)
        return self._logits(vectors, self._distances(vectors) if self.is_ready else None)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        vectors = self.project(features.pooled)
        if not self.is_ready:
            return {"loss": self.criterion(self._logits(vectors, None), targets)}
        distances = self._distances(vectors)
        labels = self.criterion(self._logits(vectors, distances), targets)
        centroids = self._centroid_loss(distances.square(), targets)
        return {"loss": labels + self.centroid_weight * centroids, "labels": labels, "centroids": centroids}

    def _distances(self, vectors: Tensor) -> Tensor:
        """Distances of document vectors to all centroids, (batch, num_labels), in single precision."""
        # One way to compute them: the default depends on the number of documents.
        mode = "use_mm_for_euclid_dist"
        distances: Tensor = torch.cdist(vectors.float(), self.centroids.float(), compute_mode=mode)
        return distances

    def _logits(self, vectors: Tensor, distances: Tensor | None) -> Tensor:
        """Logits (batch, num_labels), those of the first stage without `distances`."""
        first: Tensor = self.hallucinator(vectors)
        if distances is None:
            return first
        memory = first.float().softmax(-1) @ self.centroids
        meta = vectors + self.selector(vectors).tanh() * memory
        nearest = distances.masked_fill(~self.known, torch.inf).amin(dim=1, keepdim=True)
        # h / (1 + |h|) of h = meta * reach / nearest, which may be infinite
        unit = self.reach * meta / (nearest + self.reach * meta.norm(dim=-1, keepdim=True)).clamp_min(1e-12)
        logits: Tensor = self.scale * unit @ nn.functional.normalize(self.weight, dim=-1).T + self.bias
        return logits

    def _centroid_loss(self, squares: Tensor, targets: Targets) -> Tensor:
        """Loss of squared distances (batch, num_labels): summed over a document's labels, averaged over documents."""
        labels = targets.below(self.num_labels)
        near = squares[labels.rows, labels.indices].sum()
        far = (squares * self.known).sum() - near
        mean = far / (len(squares) * self.known.sum()).clamp_min(1)
        return near / (2 * len(squares)) + REPEL * (self.margin - mean).clamp_min(0)

    @torch.no_grad()
    def build_memory(self, ctx: TransitionContext) -> None:
        """Set the centroids to mean document vectors; sums are all-reduced, so all processes get the same result."""
        targets = ctx.train_targets().to("cpu")
        pairs = label_pairs(targets, self.num_labels)
        vectors = ((self.project(features.pooled), batch.rows) for features, batch in ctx.train_features())
        (means,) = cell_means([pairs], vectors, len(targets), self.centroids, ctx.sum)
        self.centroids.copy_(means)
        self.known.copy_(pairs[1].bincount(minlength=self.num_labels) > 0)
        self.is_ready = bool(self.ready.fill_(True))
        ctx.log({"memory/centroid_norm": float(means[self.known].norm(dim=-1).mean())})
