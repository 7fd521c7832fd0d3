"""Encoders: token ids in, `Features` out. Pure torch."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from backbones.base import Backbone, Features, WordBackbone
    from backbones.bilstm import BiLSTM
    from backbones.bow import Bow
    from backbones.cnn import CNN
    from backbones.per_level import PerLevel
    from backbones.transformer import Transformer
    from backbones.word_transformer import WordTransformer
    from backbones.words import Words

__all__ = [
    "CNN",
    "Backbone",
    "BiLSTM",
    "Bow",
    "Features",
    "PerLevel",
    "Transformer",
    "WordBackbone",
    "WordTransformer",
    "Words",
]
__getattr__, __dir__ = lazy_names(__name__)
