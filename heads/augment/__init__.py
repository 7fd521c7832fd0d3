"""Feature augmentation for rare labels: LSFA."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.augment.pvae_augmentor import PvaeAugmentor

__all__ = ["PvaeAugmentor"]
__getattr__, __dir__ = lazy_names(__name__)
