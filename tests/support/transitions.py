"""A transition of one of several processes that records the calls of a head."""

from __future__ import annotations

import torch

from heads import TransitionContext


class Recorded(TransitionContext):
    """Reads the documents of process i of n (`share` is (i, n)) in `order`, and adds `others` to its sums.

    Records the sums of this process, and the rows of each pass over the training documents.
    """

    def __init__(self, features=None, targets=None, share=(0, 1), others=None, order=None, **settings):
        super().__init__(features, targets, first=share[0] == 0, **settings)
        self.share, self.others, self.order = share, others, order
        self.sums, self.passes = [], []

    def train_features(self, rows=None):
        self.passes.append(torch.arange(len(self.targets)) if rows is None else rows)
        return super().train_features(rows)

    def sum(self, value):
        self.sums.append(value.clone())
        return value.clone() if self.others is None else value + self.others.pop(0)

    def _share(self, size, rows):
        first, step = self.share
        return super()._share(size, self.order if rows is None else rows)[first::step]
