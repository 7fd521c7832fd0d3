"""BBN: a bilateral-branch network with uniform and reversed sampling."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import DenseHead, TransitionContext
from heads.loss_base import MakeLoss
from zoo.core.errors import check_low, check_range, check_width


class BBN(DenseHead):
    """Bilateral branches with cumulative learning: the focus shifts from frequent to rare labels during training.

    Zhou et al. 2020, "BBN: Bilateral-Branch Network with Cumulative Learning for Long-Tailed Visual Recognition"
    (https://arxiv.org/abs/1912.02413). A batch has uniformly sampled documents c and documents r sampled by the rarity
    of their labels. A pair has the features 2 * [a f_c(x_c); (1 - a) f_r(x_r)] and the loss a L(y_c) + (1 - a) L(y_r),
    where a = 1 - (epoch / epochs)^2. For prediction a is 1/2. The paper is about one label per image; `weight` says how
    several labels of a document are combined.

    Args:
        hidden: width of each branch.
        epochs: epochs until a is 0 (T_max); set it to those of the stage.
        weight: sampling weight of a document in the second branch: mean or maximum of 1 / n over its labels.
        dropout: dropout rate before the classifier.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    mix: Tensor  # () a of the current epoch

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        hidden: int = 256,
        epochs: int = 15,
        weight: Literal["mean", "max"] = "mean",
        dropout: float = 0.0,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space, loss)
        check_width(hidden=hidden)
        check_low(1, epochs=epochs)
        check_range(0, 1, dropout=dropout)
        self.epochs, self.weight, self.num_documents = epochs, weight, space.num_documents
        self.even, self.reversed = (nn.Sequential(nn.Linear(dim, hidden), nn.ReLU()) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * hidden, space.num_labels)
        self.counts = torch.tensor(space.counts, dtype=torch.double)
        self.register_buffer("mix", torch.tensor(0.5))
        with torch.no_grad():
            self.classifier.bias.copy_(self.criterion.start_logits(space))  # as in `Linear`

    def both_samplers(self, targets: Targets, seed: int) -> Tensor:
        """All documents, and as many sampled by the rarity of their labels, which have the numbers of first copies.

        Sampled once per stage, not per epoch.
        """
        known = targets.below(self.num_labels)
        rarity = 1 / self.counts.clamp_min(1)[known.indices]
        reduce = "mean" if self.weight == "mean" else "amax"
        weights = rarity.new_zeros(len(targets)).scatter_reduce(0, known.rows, rarity, reduce, include_self=False)
        generator = torch.Generator().manual_seed(seed)
        # Inverse transform sampling: `torch.multinomial` takes at most 2^24 documents.
        ends = weights.cumsum(0)
        drawn = torch.searchsorted(ends, torch.rand(len(targets), generator=generator, dtype=ends.dtype) * ends[-1])
        every = torch.arange(len(targets))
        return torch.cat([every, drawn.clamp_max(len(targets) - 1) + len(targets)])

    def set_mix(self, ctx: TransitionContext) -> None:
        """Set a for this epoch; name it in `each_epoch` of the stage."""
        self.mix.fill_(max(0.0, 1 - (ctx.epoch / self.epochs) ** 2))
        ctx.log({"bbn/mix": float(self.mix)})

    def scores(self, even: Tensor, rare: Tensor, mix: Tensor | float) -> Tensor:
        """Logits of pairs of pooled vectors (pairs, dim)."""
        both = 2 * torch.cat([mix * self.even(even), (1 - mix) * self.reversed(rare)], dim=1)
        logits: Tensor = self.classifier(self.dropout(both))
        return logits

    def forward(self, features: Features) -> Tensor:
        return self.scores(features.pooled, features.pooled, 0.5)

    def weight_norms(self) -> Tensor:
        norms: Tensor = self.classifier.weight.norm(dim=1)
        return norms

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        one, other = self._pairs(features)
        logits = self.scores(features.pooled[one], features.pooled[other], self.mix)
        even, rare = (self.criterion(logits, targets.take(documents)) for documents in (one, other))
        return {"loss": self.mix * even + (1 - self.mix) * rare, "even": even, "rare": rare}

    def _pairs(self, features: Features) -> tuple[Tensor, Tensor]:
        """Row numbers of paired documents of the two samples; the smaller sample is repeated.

        If the batch has documents of one sample only, each document is paired with itself.
        """
        every = torch.arange(len(features.pooled), device=features.pooled.device)
        if features.batch is None:
            return every, every
        copied = features.batch.rows >= self.num_documents
        even, rare = every[~copied], every[copied]
        if not len(even) or not len(rare):
            return every, every
        pairs = torch.arange(max(len(even), len(rare)), device=every.device)
        return even[pairs % len(even)], rare[pairs % len(rare)]
