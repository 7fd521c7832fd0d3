"""Heads that use the co-occurrence of labels: GLaS and DXML."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.graph.dxml import DXML
    from heads.graph.glas import GLaS

__all__ = ["DXML", "GLaS"]
__getattr__, __dir__ = lazy_names(__name__)
