"""Long documents as windows: each is encoded on its own, and their features become those of the document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch
from zoo.core.exporting import is_exporting

Combine = Literal["mean", "max"]


def encode_windows(batch: Batch, encode: Callable[[Batch], Features], combine: Combine) -> Features:
    """Features of documents whose windows `encode` reads as documents.

    Token states of all windows follow one another, as the tokens do, so attention spans the whole document. A document
    vector is the mean of the windows' vectors, weighted by their numbers of tokens, or the maximum in each dimension.
    Heads therefore see one document, in training and in prediction. For a linear head, the mean of vectors is the mean
    of scores.
    """
    length, size = batch.ids.shape[1], batch.window
    count = (length + size - 1) // size
    fill = (0, count * size - length)
    ids, mask = (F.pad(part, fill).view(-1, count, size).flatten(0, 1) for part in (batch.ids, batch.mask))
    sizes = mask.sum(1).view(-1, count)
    if is_exporting():  # all windows, of which those without tokens are ignored below
        place = torch.arange(mask.shape[0], device=mask.device)
        mask = mask | (torch.arange(size, device=mask.device) == 0)
    else:
        place = sizes.flatten().nonzero().flatten()  # windows with tokens
    parts = replace(batch, ids=ids[place], mask=mask[place], window=0, vectors=None)
    found = encode(parts)

    def spread(values: Tensor) -> Tensor:
        """(windows with tokens, ...) to (docs, windows, ...), zeros elsewhere."""
        empty = values.new_zeros(sizes.numel(), *values.shape[1:])
        return empty.index_copy(0, place, values).view(*sizes.shape, *values.shape[1:])

    def states(values: Tensor) -> Tensor:
        return spread(values).flatten(1, 2)[:, :length]

    def joined(vectors: Tensor) -> Tensor:
        each = spread(vectors)  # (docs, windows, dim)
        if combine == "max":
            return each.masked_fill(sizes.unsqueeze(2) == 0, -torch.inf).amax(1)
        weights = sizes / sizes.sum(1, keepdim=True)
        return torch.einsum("bw,bwd->bd", weights.to(each.dtype), each)

    layers, vectors = tuple(map(states, found.layers)), tuple(map(joined, found.vectors))
    return Features(layers[-1], batch.mask, vectors[-1], layers, vectors)
