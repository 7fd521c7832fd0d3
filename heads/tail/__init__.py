"""Heads and wrappers for rare labels: re-ranking, decoupling, two branches, a memory, ensembles with a linear model."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.tail.bbn import BBN
    from heads.tail.decoupled import Decoupled
    from heads.tail.oltr import OLTR
    from heads.tail.reranker import Rerank
    from heads.tail.wide import Wide

__all__ = ["BBN", "OLTR", "Decoupled", "Rerank", "Wide"]
__getattr__, __dir__ = lazy_names(__name__)
