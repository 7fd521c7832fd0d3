"""Encoders: token ids in, `Features` out. Pure torch."""

from backbones.base import Backbone, Features, WordBackbone
from backbones.bilstm import BiLSTM
from backbones.cnn import CNN

__all__ = ["CNN", "Backbone", "BiLSTM", "Features", "WordBackbone"]
