"""What the tests of LSFA share: documents of several tokens, and transitions over them."""

from __future__ import annotations

import torch

from backbones.base import Features
from datamodules.batch import Batch, Targets
from heads import PvaeAugmentor
from heads.pvae import PVAETraining
from tests.unit.httn import corpus, seeded

DIM = 6


def documents(size, dim=DIM, longest=5, seed=0):
    """Features of random tokens; documents are of 1 to `longest` of them."""
    generator = seeded(seed)
    lengths = torch.randint(1, longest + 1, (size,), generator=generator)
    mask = torch.arange(longest) < lengths[:, None]
    tokens = torch.randn(size, longest, dim, generator=generator) * mask.unsqueeze(-1)
    return Features(tokens, mask, tokens.sum(1) / lengths[:, None], (tokens,))


def some(features, targets, rows):
    """Some documents, and their labels."""
    tokens = features.tokens[rows]
    lists = [part.tolist() for part in targets.indices.split(targets.counts.tolist())]
    part = Features(tokens, features.mask[rows], features.pooled[rows], (tokens,))
    return part, Targets.from_lists([lists[row] for row in rows.tolist()])


class Context:
    """A transition over given features, in any order of documents; counts how often they are read."""

    def __init__(self, features, targets, seed=3, epoch=0, size=7, order=None):
        self.features, self.targets, self.seed, self.epoch, self.size = features, targets, seed, epoch, size
        self.order = torch.arange(len(targets)) if order is None else order
        self.logged, self.passes = {}, 0

    def train_targets(self):
        return self.targets

    @torch.no_grad()
    def train_features(self):
        self.passes += 1
        for rows in self.order.split(self.size):
            features, targets = some(self.features, self.targets, rows)
            yield features, Batch(torch.zeros(len(rows), 1).long(), features.mask, targets, rows)

    def track(self, items, what):
        return iter(items)

    def sum(self, value):
        return value.clone()

    def log(self, values):
        self.logged.update(values)


def build(space, dim=DIM, seed=0, **settings):
    torch.manual_seed(seed)
    small = {"feat_dim": 5, "head_count": 10, "pvae_hidden": 8, "latent": 4, "pvae": PVAETraining(epochs=2)}
    return PvaeAugmentor(dim, space, **small | settings)


def prepared(counts=(30, 20, 12, 9, 3, 1), unseen=0, **settings):
    """A new head, and a corpus with labels of so many documents each: (head, context)."""
    space, targets, _ = corpus(counts=counts, unseen=unseen)
    return build(space, **settings), Context(documents(len(targets)), targets)


def adjusting(**settings):
    """The same after all transitions."""
    head, context = prepared(**settings)
    for method in ("collect_bank", "train_pvae", "start_adjustment"):
        getattr(head, method)(context)
    return head, context


def ignore_noise(head):
    """From now on generated features of a label are all the same."""
    with torch.no_grad():
        head.pvae.decode[0].weight[:, : head.pvae.latent] = 0
