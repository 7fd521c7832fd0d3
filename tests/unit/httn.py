"""What the tests of HTTN share: a small corpus, and transitions over given features."""

from __future__ import annotations

import torch

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads import PrototypeTransfer

DIM = 7


def wrap(pooled):
    tokens = pooled.unsqueeze(1)
    return Features(tokens, torch.ones(len(pooled), 1).bool(), pooled, (tokens,))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Context:
    """A transition over given features; `share` (i, n) makes it process i of n, whose sums `others` adds."""

    def __init__(self, pooled, targets, seed=3, size=4, share=(0, 1), others=None, order=None):
        self.pooled, self.targets, self.seed, self.size = pooled, targets, seed, size
        self.share, self.others, self.logged, self.sums = share, others, {}, []
        self.order = torch.arange(len(pooled)) if order is None else order

    def train_targets(self):
        return self.targets

    def train_features(self):
        first, step = self.share
        for rows in self.order[first::step].split(self.size):
            dense = self.targets.dense(1000)[rows]
            targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in dense])
            mask = torch.ones(len(rows), 1).bool()
            yield wrap(self.pooled[rows]), Batch(torch.zeros(len(rows), 1).long(), mask, targets, rows)

    def sum(self, value):
        self.sums.append(value.clone())
        return value if self.others is None else value + self.others.pop(0)

    def log(self, values):
        self.logged.update(values)


def corpus(num_documents=60, counts=(30, 20, 12, 9, 3, 2, 1), seed=0, unseen=0):
    """Labels with so many documents each, not in the order of their counts in one case below."""
    generator = seeded(seed)
    lists = [[] for _ in range(num_documents)]
    for label, count in enumerate(counts):
        for row in torch.randperm(num_documents, generator=generator)[:count].tolist():
            lists[row].append(label)
    if unseen:
        lists[0].append(len(counts) + 1)
    space = LabelSpace([f"l{i}" for i in range(len(counts))], list(counts), num_documents, vocab_size=9)
    return space, Targets.from_lists(lists), torch.randn(num_documents, DIM, generator=generator)


def build(space, seed=0, **settings):
    torch.manual_seed(seed)
    return PrototypeTransfer(DIM, space, **{"hidden": 5, "draws": 6} | settings)


def transferred(space, targets, pooled, **settings):
    head = build(space, **settings)
    context = Context(pooled, targets)
    head.transfer(context)
    return head, context


def members_of(targets, label):
    return [i for i in range(len(targets)) if label in targets.indices[targets.indptr[i] : targets.indptr[i + 1]]]
