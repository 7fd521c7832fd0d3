"""GLaS: a regularizer that ties the vectors of labels to their co-occurrence."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Neighbors, Ranking, TransitionContext
from heads.graph.label_graph import LabelGraph, co_occurrence, given_second, mix
from zoo.core.errors import UserError, check_low, check_width


class GLaS(Head):
    r"""Adds the GLaS regularizer to the loss of another head, on its label vectors.

    Guo et al. 2019, "Breaking the Glass Ceiling for Embedding-Based Classifiers for Large Output Spaces"
    (https://proceedings.neurips.cc/paper/2019/hash/78f7d96ea21ccae89a7b581295f34135-Abstract.html). With V the label
    vectors (labels, dim), A = Y^T Y and Z its diagonal:

    .. math::
        L = L_{inner} + \frac{\lambda}{L} \Big\lVert V V^\top - \tfrac{1}{2} (A Z^{-1} + Z^{-1} A) \Big\rVert_F^2

    Inner products of labels become the mean of P(i | j) and P(j | i): labels that never occur together are spread out,
    others are pulled together. We compute the norm exactly from V^T V (dim, dim) and the non-zero entries of A, so that
    nothing has the size labels x labels; the paper estimates it on mini-batches. Changes to the paper:

    - The paper divides by the squared number of labels, we by the number, because losses here are sums over labels.
    - V has unit rows (`normalize`): the diagonal of the target is 1, and norms of a linear head's weights carry label
      frequencies. `normalize: false` is the equation as it stands.
    - A label keeps its `neighbours` largest entries of the target, and others count as 0.
    - The paper's input dropout and loss are not part of it: they are those of the backbone and of `inner`.

    Args:
        inner: head with label vectors (`Head.label_vectors`); its transitions have dotted names.
        weight: lambda.
        normalize: use unit vectors.
        neighbours: number of non-zero entries of a label in the target, the diagonal included.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        inner: Callable[[int, LabelSpace], Head],
        weight: float = 1.0,
        normalize: bool = True,
        neighbours: int = 64,
    ) -> None:
        super().__init__(dim, space)
        check_low(0, weight=weight)
        check_width(neighbours=neighbours)
        self.inner, self.weight, self.normalize = inner(dim, space), weight, normalize
        if self.inner.label_vectors() is None:
            raise UserError(f"GLaS needs a head with one vector per label, and {type(self.inner).__name__} has none")
        self.needs_tokens, self.needs_layers = self.inner.needs_tokens, self.inner.needs_layers
        self.target = LabelGraph(space.num_labels, neighbours)

    @property
    def pending(self) -> tuple[str, ...]:
        return super().pending + (() if self.target.filled else ("count_labels",))

    def count_labels(self, ctx: TransitionContext) -> None:
        """Fill the target with the co-occurrence of labels in the training documents."""
        shares = given_second(co_occurrence(ctx.train_targets(), self.num_labels))
        self.target.fill(csr_array(shares + shares.T) / 2)

    def penalty(self) -> Tensor:
        """||V V^T - T||^2 / labels = (||V^T V||^2 - 2 <V, T V> + ||T||^2) / labels."""
        vectors = self.inner.label_vectors()
        assert vectors is not None
        vectors = F.normalize(vectors.float(), dim=-1) if self.normalize else vectors.float()
        pulled = mix(vectors, self.target.neighbours, self.target.weights)
        spread = (vectors.T @ vectors).square().sum()
        return (spread - 2 * (vectors * pulled).sum() + self.target.weights.square().sum()) / self.num_labels

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        terms = self.inner.loss(features, targets, stage)
        with torch.autocast(features.pooled.device.type, enabled=False):
            penalty = self.penalty()
        return terms | {"loss": terms["loss"] + self.weight * penalty, "labels": terms["loss"], "glas": penalty}

    # --- all else is that of the inner head

    def rank(self, features: Features, k: int) -> Ranking:
        return self.inner.rank(features, k)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        return self.inner.rankings(features, k)

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(features, targets)

    def weight_norms(self) -> Tensor | None:
        return self.inner.weight_norms()

    def label_vectors(self) -> Tensor | None:
        return self.inner.label_vectors()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.attention_weights(features, labels)

    def token_contributions(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.token_contributions(features, labels)

    def neighbors(self, features: Features, labels: Tensor) -> Neighbors | None:
        return self.inner.neighbors(features, labels)
