"""Probabilistic label trees: score clusters of labels first, then the labels of the best clusters."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.tree.lightxml import LightXML
    from heads.tree.plt import PLT, TreeHead

__all__ = ["PLT", "LightXML", "TreeHead"]
__getattr__, __dir__ = lazy_names(__name__)
