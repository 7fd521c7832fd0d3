"""Heads: `Features` in, a loss or a ranking of labels out. Pure torch."""

from heads.base import DenseHead, Head, Ranking
from heads.linear import Linear

__all__ = ["DenseHead", "Head", "Linear", "Ranking"]
