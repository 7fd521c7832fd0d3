"""64-bit hashes that are the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def hash64(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit of a value over all its bits (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
