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

Combine = Literal["mean", "max"]


def encode_windows(batch: Batch, encode: Callable[[Batch], Features], combine: Combine) -> Features:
    """Features of documents whose windows `encode` reads as documents.

    Token states of all windows follow one another, as the tokens do, so attention spans the whole document. A document
    vector is the mean of the windows' vectors, weighted by their numbers of tokens, or the maximum in each dimension.
    Heads therefore see one document, in training and in prediction. For a linear head, the mean of vectors is the mean
    of scores.
    """
    length, size = batch.ids.shape[1], batch.window
    fill = (0, -length % size)
    ids, mask = (F.pad(part, fill).reshape(-1, size) for part in (batch.ids, batch.mask))  # (docs * windows, T)
    sizes = mask.sum(1).view(len(batch), -1)
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
