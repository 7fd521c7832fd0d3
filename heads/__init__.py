"""Heads: `Features` in, a loss or a ranking of labels out. Pure torch."""

from heads.base import DenseHead, Head, Ranking, TransitionContext
from heads.linear import Linear
from heads.prototype_transfer import PrototypeTransfer

__all__ = ["DenseHead", "Head", "Linear", "PrototypeTransfer", "Ranking", "TransitionContext"]
