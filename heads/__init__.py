"""Heads: `Features` in, a loss or a ranking of labels out. Pure torch."""

from heads.adaptive_clusters import AdaptiveClusters
from heads.attentionxml import AttentionXML
from heads.base import DenseHead, Head, Ranking, TransitionContext
from heads.bbn import BBN
from heads.decoupled import Decoupled
from heads.experts import Experts
from heads.label_attention import LabelwiseHead
from heads.lightxml import LightXML
from heads.linear import Linear
from heads.linear_engine import LinearEngine
from heads.lsan import LSAN
from heads.omikuji_trees import Bonsai, Parabel
from heads.plt import PLT, TreeHead
from heads.prototype_transfer import PrototypeTransfer
from heads.pvae_augmentor import PvaeAugmentor
from heads.rerank import Rerank
from heads.svm import OneVsRestSvm
from heads.wide import Wide

__all__ = [
    "BBN",
    "LSAN",
    "PLT",
    "AdaptiveClusters",
    "AttentionXML",
    "Bonsai",
    "Decoupled",
    "DenseHead",
    "Experts",
    "Head",
    "LabelwiseHead",
    "LightXML",
    "Linear",
    "LinearEngine",
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
