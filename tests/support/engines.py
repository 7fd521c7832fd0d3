"""A small corpus for linear engines."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from datamodules.batch import Batch, LabelSpace, Targets

WORDS, LABELS = 40, 12


def corpus(documents=120, seed=0):
    """Word counts and labels; each label has a word of its own, and other words are noise."""
    random = np.random.default_rng(seed)
    chosen = [
        sorted({int(LABELS * random.random() ** 2) for _ in range(random.integers(1, 4))}) for _ in range(documents)
    ]
    counts = random.poisson(0.15, (documents, WORDS)).astype(np.float32)
    counts[:, 0] = 0  # padding
    for row, labels in enumerate(chosen):
        for label in labels:
            counts[row, 2 + 2 * label] += random.integers(1, 4)
    return csr_array(counts), Targets.from_lists(chosen)


def space_of(targets, num_labels=LABELS, words=WORDS):
    counts = torch.bincount(targets.indices, minlength=num_labels)[:num_labels].tolist()
    return LabelSpace([f"l{i}" for i in range(num_labels)], counts, num_documents=len(targets), vocab_size=words)


def batch_of(counts):
    """The same documents as a batch."""
    rows = [np.repeat(np.arange(counts.shape[1]), row.astype(int)) for row in counts.toarray()]
    rows = [row if len(row) else np.array([1]) for row in rows]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = torch.from_numpy(row)
    return Batch(ids, ids > 0, Targets.from_lists([[] for _ in rows]), torch.arange(len(rows)))
