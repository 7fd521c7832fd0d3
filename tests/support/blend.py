"""A small corpus of documents with words and label texts, and members with given scores."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.bags import bags
from heads import TransitionContext

WORDS, LABELS, LEAD = 30, 12, 4
UNKNOWN = 1  # in no training document


class Corpus:
    """Random documents; each label has a word of its own, which its documents often have."""

    def __init__(self, documents: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        drawn = [{int(LABELS * random.random() ** 2) for _ in range(random.integers(1, 4))} for _ in range(documents)]
        self.labels = [sorted(row) for row in drawn]
        self.rows = [
            [2 + label for label in labels if random.random() < 0.8]
            + random.integers(2, WORDS, random.integers(1, 12)).tolist()
            for labels in self.labels
        ]
        self._encode()

    def _encode(self) -> None:
        self.targets = Targets.from_lists(self.labels)
        ids = torch.zeros(len(self.rows), max(map(len, self.rows)), dtype=torch.long)
        for line, row in zip(ids, self.rows, strict=True):
            line[: len(row)] = torch.tensor(row)
        self.batch = Batch(ids, ids > 0, self.targets, torch.arange(len(self.rows)))
        counts = torch.bincount(self.targets.indices, minlength=LABELS).tolist()
        self.space = LabelSpace([f"l{i}" for i in range(LABELS)], counts, len(self.rows), vocab_size=WORDS)

    def keep(self, rows: torch.Tensor) -> None:
        self.labels, self.rows = ([part[i] for i in rows.tolist()] for part in (self.labels, self.rows))
        self._encode()

    @property
    def features(self) -> Features:
        """Those of the backbone `Words`."""
        pooled = torch.zeros(len(self.rows), 1)
        tokens = torch.zeros(len(self.rows), 0, 1)
        return Features(tokens, self.batch.mask[:, :0], pooled, (tokens,), batch=self.batch)

    def context(self, val: Corpus | None = None, **settings: int) -> TransitionContext:
        labels = label_batch()
        known = [(Features(torch.zeros(LABELS, 0, 1), labels.mask[:, :0], torch.zeros(LABELS, 1), ()), labels)]
        pair = None if val is None else (val.features, val.targets)
        context = Bags(self.features, self.targets, val=pair, labels=known, **settings)
        context.rows = self.rows
        return context


class Bags(TransitionContext):
    """Counts the words of the training documents, and of their first words, as a datamodule does."""

    rows: list[list[int]]

    def train_words(self, lead: int = 0) -> csr_array:
        tokens, starts = np.concatenate(self.rows), np.cumsum([0, *map(len, self.rows)])
        return bags(tokens.astype(np.int64), starts, None, WORDS, lead)


def label_batch() -> Batch:
    """Texts of all labels but the last: the label's own word, two others, an unknown one, and the first one again."""
    rows = [[2 + label, UNKNOWN, 3 + label, 20, 2 + label, 4 + label] for label in range(LABELS - 1)]
    ids = torch.tensor(rows)
    return Batch(ids, ids > 0, Targets.from_lists([[] for _ in rows]), torch.arange(len(rows)))
