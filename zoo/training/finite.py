"""Finds weights that are infinite or NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SHOWN = 2  # names in a message


def non_finite(state: Any) -> list[str]:
    """Return the dotted keys of tensors that contain an infinity or NaN, in nested dicts and lists."""
    tensors = dict(floating(state))
    # The extremes are NaN if any value is; unlike `isfinite` of all values, they need no memory.
    finite = [torch.stack(torch.aminmax(tensor.detach())).isfinite().all() for tensor in tensors.values()]
    return [name for name, flag in zip(tensors, finite, strict=True) if not flag]


def floating(value: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield key, value.coalesce().values() if value.is_sparse else value
    elif isinstance(value, dict | list | tuple):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from floating(item, f"{key}.{name}" if key else str(name))


def shortened(names: list[str]) -> str:
    """Format the first names and the number of the others."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
