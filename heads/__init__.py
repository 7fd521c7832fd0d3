"""Heads: `Features` in, a loss or a ranking of labels out. Pure torch."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.attention import EXAM, LDGN, LSAN, AttentionXML, LabelwiseHead
    from heads.augment import PvaeAugmentor
    from heads.base import DenseHead, Head, Ranking, TransitionContext
    from heads.blend import Blend
    from heads.dual import DualEncoder
    from heads.engines import Bonsai, LinearEngine, NearestNeighbours, OneVsRestSvm, Parabel
    from heads.experts import AdaptiveClusters, Experts
    from heads.graph import DXML, GLaS
    from heads.linear import Linear
    from heads.tail import BBN, OLTR, Decoupled, Rerank, Wide
    from heads.transfer import PrototypeTransfer
    from heads.tree import PLT, LightXML, TreeHead

__all__ = [
    "BBN",
    "DXML",
    "EXAM",
    "LDGN",
    "LSAN",
    "OLTR",
    "PLT",
    "AdaptiveClusters",
    "AttentionXML",
    "Blend",
    "Bonsai",
    "Decoupled",
    "DenseHead",
    "DualEncoder",
    "Experts",
    "GLaS",
    "Head",
    "LabelwiseHead",
    "LightXML",
    "Linear",
    "LinearEngine",
    "NearestNeighbours",
    "OneVsRestSvm",
    "Parabel",
    "PrototypeTransfer",
    "PvaeAugmentor",
    "Ranking",
    "Rerank",
    "TransitionContext",
    "TreeHead",
    "Wide",
]
__getattr__, __dir__ = lazy_names(__name__)
