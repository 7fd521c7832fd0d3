"""Place of a model outside of a `Blend`."""

from __future__ import annotations

from torch import Tensor

from backbones.base import Features
from datamodules.batch import Targets
from heads.base import Head, Ranking
from zoo.core.errors import UserError


class Proposals(Head):
    """Stands for a finished model with its own backbone, whose rankings `Blend.blended` is given: see `zoo blend`."""

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        raise outside()

    def rank(self, features: Features, k: int) -> Ranking:
        raise outside()


def outside() -> UserError:
    return UserError("Proposals stands for a finished model: `zoo blend` makes such a Blend, `fit` cannot")
