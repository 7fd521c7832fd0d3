"""Several classifiers in one head: multi-layer experts (ME-XML) and adaptive clusters (APLC)."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.experts.adaptive_clusters import AdaptiveClusters
    from heads.experts.multi_layer import Experts

__all__ = ["AdaptiveClusters", "Experts"]
__getattr__, __dir__ = lazy_names(__name__)
