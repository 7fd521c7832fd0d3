"""Documents as bags: how often they have each word, and which words and pairs of words they begin with."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, hstack

PAIRS = 2**20  # columns that pairs of words are hashed into
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: spreads consecutive numbers evenly


def bag_width(vocab_size: int, lead: int) -> int:
    """Columns of `bags`."""
    return 2 * vocab_size + PAIRS if lead else vocab_size


def bags(
    tokens: np.ndarray, starts: np.ndarray, values: np.ndarray | None, vocab_size: int, lead: int = 0
) -> csr_array:
    """Counts (or sums of values) of tokens in documents, which start at `starts`, (documents, `bag_width`).

    With `lead`, words among the first so many of a document count once more in columns of their own, and pairs of
    neighbours there: a title says more than the rest, and its words mean more together.
    """
    values = np.ones(len(tokens), np.float32) if values is None else values
    beginnings = _beginnings(tokens, starts, values, vocab_size, lead) if lead else []
    body = _counts(tokens, starts, values, vocab_size)  # last, for it takes the arrays as its own
    return csr_array(hstack([body, *beginnings], format="csr")) if lead else body


def _beginnings(
    tokens: np.ndarray, starts: np.ndarray, values: np.ndarray, vocab_size: int, lead: int
) -> list[csr_array]:
    """Counts of words among the first `lead`, and of pairs of them."""
    sizes = np.diff(starts)
    place = np.arange(len(tokens)) - starts[:-1].repeat(sizes)
    words, pairs = place < lead, place < np.minimum(sizes, lead).repeat(sizes) - 1
    firsts = np.flatnonzero(pairs)
    codes = tokens[firsts].astype(np.uint64) * np.uint64(vocab_size) + tokens[firsts + 1].astype(np.uint64)
    hashed = (codes * GOLDEN >> np.uint64(64 - PAIRS.bit_length() + 1)).astype(tokens.dtype)
    return [
        _counts(tokens[words], _starts(words, starts), values[words], vocab_size),
        _counts(hashed, _starts(pairs, starts), np.ones(len(hashed), np.float32), PAIRS),
    ]


def _starts(kept: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Where documents start when only some of their tokens are kept."""
    before: np.ndarray = np.concatenate([[0], kept.cumsum()])[starts]
    return before


def _counts(tokens: np.ndarray, starts: np.ndarray, values: np.ndarray, width: int) -> csr_array:
    places = np.int32 if len(tokens) < 2**31 else np.int64  # half the memory wherever they do
    shape = (len(starts) - 1, width)
    counts = csr_array((values, tokens.astype(places, copy=False), starts.astype(places)), shape)
    counts.sum_duplicates()
    counts.eliminate_zeros()  # a document without features has one of value 0
    return counts
