"""Bag-of-words counts of documents, with separate counts for the words and bigrams at their beginning."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, hstack

PAIRS = 2**20  # columns of hashed bigrams
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Fibonacci hashing)


def bag_width(vocab_size: int, lead: int) -> int:
    """Number of columns of `bags`."""
    return 2 * vocab_size + PAIRS if lead else vocab_size


def bags(
    tokens: np.ndarray, starts: np.ndarray, values: np.ndarray | None, vocab_size: int, lead: int = 0
) -> csr_array:
    """Count the tokens of documents, or sum their values, (documents, `bag_width`).

    Args:
        tokens: token ids of all documents, concatenated.
        starts: start of each document in `tokens`, and the end of the last.
        values: value of each token; 1 by default.
        vocab_size: number of token ids.
        lead: if not 0, the first `lead` words of a document (the title) and their bigrams are counted once more, in
            columns of their own.
    """
    values = np.ones(len(tokens), np.float32) if values is None else values
    beginnings = _lead_counts(tokens, starts, values, vocab_size, lead) if lead else []
    body = _counts(tokens, starts, values, vocab_size)  # last, because it modifies the arrays in place
    return csr_array(hstack([body, *beginnings], format="csr")) if lead else body


def occurrences(tokens: np.ndarray, vocab_size: int, lead: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns of `bags` and the position of a token that counts there, for the tokens of a document.

    A bigram counts at both of its words.
    """
    every, first = np.arange(len(tokens)), np.arange(min(lead, len(tokens)))
    pairs = vocab_size + vocab_size + _hashed(tokens[first[:-1]], tokens[first[1:]], vocab_size)
    columns = [tokens, vocab_size + tokens[first], pairs, pairs]
    return np.concatenate(columns), np.concatenate([every, first, first[:-1], first[1:]])


def _hashed(tokens: np.ndarray, following: np.ndarray, vocab_size: int) -> np.ndarray:
    """Column of each bigram, from 0."""
    codes = tokens.astype(np.uint64) * np.uint64(vocab_size) + following.astype(np.uint64)
    hashed: np.ndarray = (codes * GOLDEN >> np.uint64(64 - PAIRS.bit_length() + 1)).astype(tokens.dtype)
    return hashed


def _lead_counts(
    tokens: np.ndarray, starts: np.ndarray, values: np.ndarray, vocab_size: int, lead: int
) -> list[csr_array]:
    """Count the first `lead` words of documents, and their bigrams."""
    sizes = np.diff(starts)
    place = np.arange(len(tokens)) - starts[:-1].repeat(sizes)
    words, pairs = place < lead, place < np.minimum(sizes, lead).repeat(sizes) - 1
    firsts = np.flatnonzero(pairs)
    hashed = _hashed(tokens[firsts], tokens[firsts + 1], vocab_size)
    return [
        _counts(tokens[words], _starts(words, starts), values[words], vocab_size),
        _counts(hashed, _starts(pairs, starts), np.ones(len(hashed), np.float32), PAIRS),
    ]


def _starts(kept: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Starts of documents after only the tokens of the mask are kept."""
    before: np.ndarray = np.concatenate([[0], kept.cumsum()])[starts]
    return before


def _counts(tokens: np.ndarray, starts: np.ndarray, values: np.ndarray, width: int) -> csr_array:
    index = np.int32 if len(tokens) < 2**31 else np.int64  # int32 halves the memory
    shape = (len(starts) - 1, width)
    counts = csr_array((values, tokens.astype(index, copy=False), starts.astype(index)), shape)
    counts.sum_duplicates()
    counts.eliminate_zeros()  # documents without features have one of value 0
    return counts
