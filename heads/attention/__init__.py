"""Heads in which labels read the tokens: AttentionXML, LSAN, LDGN and EXAM."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.attention.attentionxml import AttentionXML
    from heads.attention.exam import EXAM
    from heads.attention.label_attention import LabelwiseHead
    from heads.attention.ldgn import LDGN
    from heads.attention.lsan import LSAN

__all__ = ["EXAM", "LDGN", "LSAN", "AttentionXML", "LabelwiseHead"]
__getattr__, __dir__ = lazy_names(__name__)
