"""What the tests of re-ranking share: a head with given scores, a long tail, and transitions over both."""

from __future__ import annotations

import torch

from datamodules.batch import Batch, LabelSpace, Targets
from heads import Head, Rerank
from heads.base import Ranking, top_labels
from tests.unit.httn import seeded, wrap


class Given(Head):
    """Ranks by probabilities that the features hold, those from `start` on; nothing to train."""

    def __init__(self, dim, space, start=0):
        super().__init__(dim, space)
        self.start = start

    def loss(self, features, targets, stage):
        return {"loss": features.pooled.sum()}

    def rank(self, features, k):
        return top_labels(features.pooled[:, self.start : self.start + self.num_labels], k)


class Folded(Given):
    """An engine that has out-of-fold scores: the features of all training documents."""

    def out_of_fold(self, ctx, folds, k):
        self.asked = folds, k
        return self.rank(wrap(ctx.scores), k)


class Context:
    """A transition over documents whose features are `scores`, for training and validation alike.

    `share` (i, n) makes it process i of n, whose sums `others` adds.
    """

    epoch = 0

    def __init__(self, scores, targets, seed=3, size=200, share=(0, 1), others=None):
        self.scores, self.targets, self.seed, self.size = scores, targets, seed, size
        self.share, self.others, self.first = share, others, share[0] == 0
        self.logged, self.sums, self.rows = {}, [], None

    def train_targets(self):
        return self.targets

    val_targets = train_targets

    def train_features(self, rows=None):
        self.rows = torch.arange(len(self.targets)) if rows is None else rows
        return self._features(self.rows)

    def val_features(self):
        return self._features(torch.arange(len(self.targets)))

    def _features(self, rows):
        first, step = self.share
        for part in rows[first::step].split(self.size):
            ids = torch.zeros(len(part), 1).long()
            yield wrap(self.scores[part]), Batch(ids, ids == 0, self.targets.take(part), part)

    def track(self, items, what):
        return iter(items)

    def sum(self, value):
        self.sums.append(value.clone())
        return value.clone() if self.others is None else value + self.others.pop(0)

    def log(self, values):
        self.logged.update(values)


def long_tail(num_labels=40, documents=600, seed=0, unseen=0, noise=1.6):
    """A corpus of three labels for each document, and scores of a base that is less sure of a label the rarer it is."""
    generator = seeded(seed)
    weight = 1.0 / torch.arange(1, num_labels + 1)
    drawn = torch.multinomial(weight.expand(documents, -1), 3, generator=generator)
    lists = [sorted(set(row)) for row in drawn.tolist()]
    for row in range(unseen):
        lists[row].append(num_labels)
    targets = Targets.from_lists(lists)
    dense = targets.dense(num_labels)
    counts = dense.sum(0).long().tolist()
    names = [f"l{i}" for i in range(num_labels)]
    space = LabelSpace(names, counts, documents, vocab_size=9, unseen=["u"] * bool(unseen))
    suppressed = (dense.sum(0) / documents).clamp_min(1e-3).log() / 2  # of rare labels
    drawn = torch.randn(documents, num_labels, generator=generator)
    return space, targets, (5 * dense - 2 + suppressed + noise * drawn).sigmoid()


def build(space, inner=Given, seed=0, **settings):
    torch.manual_seed(seed)
    return Rerank(space.num_labels, space, inner, **{"width": 32} | settings)


def ranking(scores, labels):
    return Ranking(torch.tensor(scores), torch.tensor(labels))
