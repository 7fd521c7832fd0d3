"""A head with given scores, a long-tailed corpus, and transitions over both."""

from __future__ import annotations

import torch

from datamodules.batch import LabelSpace, Targets
from heads import Head, Rerank
from heads.base import Ranking, top_labels
from tests.support.httn import seeded, wrap
from tests.support.transitions import Recorded


class Given(Head):
    """Ranks by the probabilities in the features, from column `start` on; nothing is trained."""

    def __init__(self, dim, space, start=0):
        super().__init__(dim, space)
        self.start = start

    def loss(self, features, targets, stage):
        return {"loss": features.pooled.sum()}

    def rank(self, features, k):
        return top_labels(features.pooled[:, self.start : self.start + self.num_labels], k)


class Folded(Given):
    """An engine whose out-of-fold scores are the features of all training documents."""

    def out_of_fold(self, ctx, folds, k):
        self.asked = folds, k
        return self.rank(wrap(ctx.features.pooled), k)


def transition(scores, targets, **settings):
    """A transition whose training and validation features are `scores`."""
    features = wrap(scores)
    return Recorded(features, targets, val=(features, targets), **{"seed": 3, "batch_size": 200} | settings)


def long_tail(num_labels=40, documents=600, seed=0, unseen=0, noise=1.6):
    """Three labels a document, and scores of a head that is less confident of rarer labels."""
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
