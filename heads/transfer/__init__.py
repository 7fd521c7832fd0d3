"""Prototype transfer: classifiers of rare labels from a few documents (HTTN, EHTTN, imprinting)."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.transfer.prototype_transfer import PrototypeTransfer

__all__ = ["PrototypeTransfer"]
__getattr__, __dir__ = lazy_names(__name__)
