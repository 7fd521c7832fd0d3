"""Documents that are nearly the same: MinHash signatures, banded to find candidates, which shingles then confirm."""

from __future__ import annotations

import math
from array import array
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

WORDS = 3  # in a shingle of a text
HASHES = 64  # of a signature
RECALL = 0.99  # of pairs at the threshold, to become candidates
LARGEST_BUCKET = 1_000  # documents of a bucket that one document is held against
TRIED = 5  # candidates of one document, the likeliest, that are read again
DEVIATIONS = 4  # of an estimate, by which it may lie below the threshold

Hashes = NDArray[np.uint64]
Matrix = NDArray[np.uint32]
_random = np.random.default_rng(0)
FACTORS: Hashes = _random.integers(0, 2**63, (HASHES, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
OFFSETS: Hashes = _random.integers(0, 2**63, (HASHES, 1), dtype=np.uint64)
PLACES: Hashes = _random.integers(0, 2**63, WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
MIX, MIX_AGAIN = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
HALF = np.uint64(32)
# Letters, digits and all that is not ASCII stay, the rest becomes spaces: several times as fast as a pattern.
WORD_BYTES = bytes(byte if byte > 127 or chr(byte).isalnum() else ord(" ") for byte in range(256))
NOTHING = np.uint32(2**32 - 1)  # in every place of the signature of a document without words


def shingles(text: str, has_features: bool = False) -> Hashes:
    """Hashes of a document's runs of three words, or of its features; a shorter text is one run."""
    words = (text if has_features else text.lower()).encode()
    parts = (words if has_features else words.translate(WORD_BYTES)).split()
    hashes = np.fromiter(map(crc32, parts), np.uint64, len(parts))
    width = 1 if has_features else min(WORDS, len(hashes))
    length = len(hashes) - width + 1 if width else 0
    total = np.zeros(length, np.uint64)
    for place in range(width):
        total += mixed(hashes[place : place + length] + PLACES[place])
    return np.unique(mixed(total))


def mixed(values: Hashes) -> Hashes:
    """Every bit of a value spread over all bits (the end of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * MIX
    values = (values ^ (values >> np.uint64(27))) * MIX_AGAIN
    return values ^ (values >> np.uint64(31))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Share of the shingles of either that both have."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(len(one) + len(other) - both, 1)


def signature(hashes: Hashes) -> Matrix:
    """Smallest value of each hash function over the shingles: two documents agree in a share that is their Jaccard."""
    if not len(hashes):
        return np.full(HASHES, NOTHING)
    smallest: Hashes = (FACTORS * hashes + OFFSETS).min(axis=1)
    return (smallest >> HALF).astype(np.uint32)


class Signatures:
    """Signatures of documents, in the order in which they came, 256 bytes each."""

    def __init__(self, has_features: bool = False) -> None:
        self.has_features = has_features
        self._values = array("I")

    def add(self, text: str) -> None:
        self._values.frombytes(signature(shingles(text, self.has_features)).tobytes())

    def matrix(self) -> Matrix:
        """(documents, HASHES)"""
        return np.frombuffer(self._values, np.uint32).reshape(-1, HASHES)


def rows_in_band(threshold: float) -> int:
    """As many as leave a pair at the threshold a chance of 99 % to agree in a whole band."""
    widths = range(1, HASHES + 1)
    enough = [rows for rows in widths if 1 - (1 - threshold**rows) ** (HASHES // rows) >= RECALL]
    return max(enough, default=1)


def bands(matrix: Matrix, rows: int) -> Hashes:
    """One key for each band of a signature, (documents, bands)."""
    parts = matrix[:, : HASHES // rows * rows].reshape(len(matrix), -1, rows).astype(np.uint64)
    keys = np.zeros(parts.shape[:2], np.uint64)
    for place in range(rows):
        keys = mixed(keys + parts[:, :, place] + np.uint64(1))
    return keys


def candidates(train: Matrix, others: Matrix, threshold: float) -> dict[int, list[int]]:
    """For rows of `others`, the rows of `train` that are likely to be as near as the threshold, likeliest first."""
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
    for row in np.flatnonzero((others != NOTHING).any(axis=1)).tolist():
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
