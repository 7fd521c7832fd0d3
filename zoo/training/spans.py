"""Explanations as spans of a text: where the tokens of a document are, and how weights of tokens become spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datamodules.prepare.vocabulary import FeatureVocabulary, Vocabulary, parse_feature

MOST = 50  # spans per label
LEAST = 0.01  # weight of a span, relative to the largest one
LONGEST = 40  # characters of a word; the tokens of longer ones are spans of their own
FEATURE = re.compile(r"\S+")

Place = tuple[int, int]  # start and end in characters of a text; end is excluded


@dataclass(frozen=True)
class Span:
    """Characters of a text that speak for a label: `text[span.start : span.end]`.

    Attributes:
        start: first character.
        end: the character after the last one.
        weight: share in what speaks for the label, in (0, 1].
    """

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class Similar:
    """A similar training document with the label.

    Attributes:
        id: its id; its number in the training documents if the model does not have ids.
        similarity: cosine of TF-IDF, or of document vectors.
    """

    id: str
    similarity: float


@dataclass(frozen=True)
class Explanation:
    """What speaks for a label of a text: words, and training documents if the model compares with these."""

    spans: tuple[Span, ...] = ()
    documents: tuple[Similar, ...] = ()


def token_places(vocabulary: Vocabulary, text: str) -> list[Place]:
    """Where the word of each token is, aligned with `Vocabulary.encode`; (0, 0) for special tokens.

    Tokens that a word was split into have the place of the whole word.
    """
    if isinstance(vocabulary, FeatureVocabulary):
        found = [(feature.span(), *parse_feature(feature[0])) for feature in FEATURE.finditer(text)]
        return [place for place, name, value in found if name in vocabulary.features and value] or [(0, 0)]
    encoded = vocabulary.tokenizer.encode(text)
    windows = [encoded, *encoded.overflowing[: vocabulary.windows - 1]]
    return [place for each in windows for place in word_places(each.offsets, each.word_ids, text)] or [(0, 0)]


def word_places(offsets: Sequence[Place], words: Sequence[int | None], text: str) -> list[Place]:
    """Replace the place of each token by that of its word, without white space; (0, 0) if there is no word."""
    ends: dict[int, Place] = {}
    for (start, end), word in zip(offsets, words, strict=True):
        if word is not None:
            first, last = ends.get(word, (start, end))
            ends[word] = min(first, start), max(last, end)
    found = ((0, 0) if word is None else ends[word] for word in words)
    # Languages without spaces, and some tokenizers, have a whole sentence as one word
    each = (own if whole[1] - whole[0] > LONGEST else whole for own, whole in zip(offsets, found, strict=True))
    return [without_space(place, text) for place in each]


def without_space(place: Place, text: str) -> Place:
    """Some tokenizers count the space before a word as a part of it."""
    start, end = place
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def original_places(text: str) -> np.ndarray | None:
    """Position in `text` of each character of `well_formed(text)`, and of its end; None if they are the same.

    Surrogate pairs, which JSON may contain, are two characters of a Python string and become one.
    """
    pairs = [found.start() for found in re.finditer("[\ud800-\udbff][\udc00-\udfff]", text)]
    if not pairs:
        return None
    return np.delete(np.arange(len(text) + 1), np.array(pairs) + 1)


def spans(places: Sequence[Place], weights: np.ndarray) -> tuple[Span, ...]:
    """Spans in the order of the text from the weights of tokens; those that are not positive are dropped."""
    kept = [(place, float(w)) for place, w in zip(places, weights, strict=False) if w > 0 and place[1] > place[0]]
    return normalized(sums(kept))


def sums(weighted: Sequence[tuple[Place, float]]) -> dict[Place, float]:
    """Sum the weights of equal places."""
    total: dict[Place, float] = {}
    for place, weight in weighted:
        total[place] = total.get(place, 0.0) + weight
    return total


def normalized(weights: dict[Place, float]) -> tuple[Span, ...]:
    """Divide by the sum, and keep the largest weights."""
    total = sum(weights.values())
    best = sorted(weights, key=lambda place: (-weights[place], place))[:MOST]
    least = LEAST * weights[best[0]] if best else 0
    return tuple(Span(*place, weights[place] / total) for place in sorted(best) if weights[place] >= least)


def mean_explanation(several: Sequence[Explanation]) -> Explanation:
    """Explanation of a label by several models; similar documents of the first that has some."""
    documents = next((each.documents for each in several if each.documents), ())
    return Explanation(mean_spans([each.spans for each in several]), documents)


def mean_spans(several: Sequence[tuple[Span, ...]]) -> tuple[Span, ...]:
    """Mean of the explanations of several models, cut where one of them has a boundary; they need not have one."""
    several = [each for each in several if each]
    edges = sorted({edge for each in several for span in each for edge in (span.start, span.end)})
    weighted = []
    for each in several:
        for span in each:
            first, last = edges.index(span.start), edges.index(span.end)
            for start, end in zip(edges[first:last], edges[first + 1 : last + 1], strict=True):
                share = (end - start) / (span.end - span.start)
                weighted.append(((start, end), span.weight * share / len(several)))
    return normalized(sums(weighted))
