"""Near-duplicate search: MinHash signatures with banding find candidate pairs, exact shingles confirm them."""

from __future__ import annotations

import math
from array import array
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from zoo.core.hashing import mix64

WORDS = 3  # words in a shingle
HASHES = 64  # hash functions of a signature
RECALL = 0.99  # share of the pairs at the threshold that become candidates
LARGEST_BUCKET = 1_000  # documents of a bucket that a document is compared with
TRIED = 5  # best candidates of a document, whose shingles are compared exactly
DEVIATIONS = 4  # standard deviations by which an estimate may fall below the threshold

Hashes = NDArray[np.uint64]
Matrix = NDArray[np.uint32]
_random = np.random.default_rng(0)
FACTORS: Hashes = _random.integers(0, 2**63, (HASHES, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
OFFSETS: Hashes = _random.integers(0, 2**63, (HASHES, 1), dtype=np.uint64)
PLACES: Hashes = _random.integers(0, 2**63, WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
# ASCII punctuation becomes spaces; `bytes.translate` is several times faster than a regular expression.
WORD_BYTES = bytes(byte if byte > 127 or chr(byte).isalnum() else ord(" ") for byte in range(256))
NO_WORDS = np.uint32(2**32 - 1)  # every entry of the signature of a document without words


def shingles(text: str, has_features: bool = False) -> Hashes:
    """Hash the runs of three words of a document, or its features; a shorter text is a single run."""
    words = (text if has_features else text.lower()).encode()
    parts = (words if has_features else words.translate(WORD_BYTES)).split()
    hashes = np.fromiter(map(crc32, parts), np.uint64, len(parts))
    width = 1 if has_features else min(WORDS, len(hashes))
    length = len(hashes) - width + 1 if width else 0
    total = np.zeros(length, np.uint64)
    for place in range(width):
        total += mix64(hashes[place : place + length] + PLACES[place])
    return np.unique(mix64(total))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Jaccard similarity of two sets of shingles."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(len(one) + len(other) - both, 1)


def signature(hashes: Hashes) -> Matrix:
    """MinHash signature: the share of equal entries of two signatures estimates the Jaccard similarity."""
    if not len(hashes):
        return np.full(HASHES, NO_WORDS)
    smallest: Hashes = (FACTORS * hashes + OFFSETS).min(axis=1)
    return (smallest >> np.uint64(32)).astype(np.uint32)


class Signatures:
    """Growing list of signatures, 256 bytes per document."""

    def __init__(self, has_features: bool = False) -> None:
        self.has_features = has_features
        self._values = array("I")

    def add(self, text: str) -> None:
        self._values.frombytes(signature(shingles(text, self.has_features)).tobytes())

    def matrix(self) -> Matrix:
        """(documents, HASHES)"""
        return np.frombuffer(self._values, np.uint32).reshape(-1, HASHES)


def rows_in_band(threshold: float) -> int:
    """Largest band size with which a pair at the threshold shares a band with probability `RECALL`."""
    widths = range(1, HASHES + 1)
    enough = [rows for rows in widths if 1 - (1 - threshold**rows) ** (HASHES // rows) >= RECALL]
    return max(enough, default=1)


def bands(matrix: Matrix, rows: int) -> Hashes:
    """Hash the bands of signatures, (documents, bands)."""
    parts = matrix[:, : HASHES // rows * rows].reshape(len(matrix), -1, rows).astype(np.uint64)
    keys = np.zeros(parts.shape[:2], np.uint64)
    for place in range(rows):
        keys = mix64(keys + parts[:, :, place] + np.uint64(1))
    return keys


def candidates(train: Matrix, others: Matrix, threshold: float) -> dict[int, list[int]]:
    """Find, for rows of `others`, the rows of `train` whose similarity probably reaches the threshold, best first."""
    if not len(train) or not len(others):
        return {}
    rows = rows_in_band(threshold)
    keys, other_keys = bands(train, rows), bands(others, rows)
    orders = np.argsort(keys, axis=0, kind="stable")
    ordered = np.take_along_axis(keys, orders, axis=0)
    sides = [
        [np.searchsorted(ordered[:, band], other_keys[:, band], side) for side in ("left", "right")]
        for band in range(keys.shape[1])
    ]
    least = threshold - DEVIATIONS * math.sqrt(threshold * (1 - threshold) / HASHES)
    found = {}
    for row in np.flatnonzero((others != NO_WORDS).any(axis=1)).tolist():
        buckets = [
            orders[left[row] : min(right[row], left[row] + LARGEST_BUCKET), band]
            for band, (left, right) in enumerate(sides)
            if right[row] > left[row]
        ]
        if buckets:
            near = np.unique(np.concatenate(buckets))
            share = (train[near] == others[row]).mean(axis=1)
            best = np.argsort(-share, kind="stable")[:TRIED]
            if likely := near[best[share[best] >= least]].tolist():
                found[row] = likely
    return found
