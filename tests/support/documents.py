"""Label spaces, batches and features of random documents."""

from __future__ import annotations

import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def label_space(counts, num_documents=100, vocab_size=9, **settings) -> LabelSpace:
    """Labels l0, l1, ... with these document counts."""
    return LabelSpace([f"l{i}" for i in range(len(counts))], list(counts), num_documents, vocab_size, **settings)


def length_mask(lengths, columns=0) -> Tensor:
    return torch.arange(max(lengths) + columns) < torch.tensor(lengths)[:, None]


def random_batch(lengths, vocab_size, columns=0, values=False, seed=0, lowest=1, pad_id=0) -> Batch:
    """Random documents of these lengths, followed by `columns` columns of padding."""
    mask, generator = length_mask(lengths, columns), seeded(seed)
    ids, weights = torch.full(mask.shape, pad_id), torch.zeros(mask.shape)
    ids[mask] = torch.randint(lowest, vocab_size, (sum(lengths),), generator=generator)
    weights[mask] = torch.rand(sum(lengths), generator=generator) * 3
    targets, rows = Targets.from_lists([[0]] * len(lengths)), torch.arange(len(lengths))
    return Batch(ids, mask, targets, rows, weights if values else None)


def vector_features(pooled: Tensor) -> Features:
    """Documents of one token each, whose state is the document's vector."""
    tokens = pooled.unsqueeze(1)
    return Features(tokens, torch.ones(len(pooled), 1).bool(), pooled, (tokens,))


def token_features(lengths, dim, layers=1, seed=0, noise=False) -> Features:
    """Random token states that require gradients; `noise` leaves random states at padding positions too."""
    mask, generator = length_mask(lengths), seeded(seed)
    states = tuple(torch.randn(*mask.shape, dim, generator=generator) for _ in range(layers))
    states = tuple((state if noise else state * mask.unsqueeze(-1)).requires_grad_() for state in states)
    vectors = tuple(state.sum(1) for state in states)
    return Features(states[-1], mask, vectors[-1], states, vectors)
