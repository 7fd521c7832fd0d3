"""Heads: `Features` in, a loss or a ranking of labels out. Pure torch."""

from heads.adaptive_clusters import AdaptiveClusters
from heads.attentionxml import AttentionXML
from heads.base import DenseHead, Head, Ranking, TransitionContext
from heads.experts import Experts
from heads.label_attention import LabelwiseHead
from heads.lightxml import LightXML
from heads.linear import Linear
from heads.lsan import LSAN
from heads.plt import PLT, TreeHead
from heads.prototype_transfer import PrototypeTransfer
from heads.pvae_augmentor import PvaeAugmentor

__all__ = [
    "LSAN",
    "PLT",
    "AdaptiveClusters",
    "AttentionXML",
    "DenseHead",
    "Experts",
    "Head",
    "LabelwiseHead",
    "LightXML",
    "Linear",
    "PrototypeTransfer",
    "PvaeAugmentor",
    "Ranking",
    "TransitionContext",
    "TreeHead",
]
