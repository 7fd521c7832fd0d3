"""Dual encoders: labels are scored by the similarity of their texts' vectors with the document's."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.dual.dual_encoder import DualEncoder

__all__ = ["DualEncoder"]
__getattr__, __dir__ = lazy_names(__name__)
