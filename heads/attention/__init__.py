"""Label attention heads: AttentionXML and LSAN."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.attention.attentionxml import AttentionXML
    from heads.attention.label_attention import LabelwiseHead
    from heads.attention.lsan import LSAN

__all__ = ["LSAN", "AttentionXML", "LabelwiseHead"]
__getattr__, __dir__ = lazy_names(__name__)
