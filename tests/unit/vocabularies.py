"""Vocabularies of a few texts."""

from __future__ import annotations

import numpy as np

from datamodules.tokens import Learned, LearnedFeatures


def build_words(texts, max_words, max_length, kind=Learned):
    reading = kind(max_words, max_length)
    reading.number(reading.cut(texts, np.ones(len(texts), dtype=bool)))
    return reading.vocabulary()


def build_features(texts, max_words, max_length):
    return build_words(texts, max_words, max_length, LearnedFeatures)
