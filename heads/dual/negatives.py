"""Negative labels of a batch: hard ones of each document, and siblings in the hierarchy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from datamodules.batch import LabelSpace, Targets
from heads.base import Ranking
from heads.tail.rankings import relevant


def best_wrong(ranking: Ranking, targets: Targets, size: int) -> Tensor:
    """The first `size` labels of each ranking that are none of the document's, padded with -1, (docs, size)."""
    wrong = (ranking.labels >= 0) & ~relevant(ranking.labels, targets)
    order = (~wrong).long().argsort(dim=1, stable=True)[:, :size]
    found = ranking.labels.gather(1, order).masked_fill(~wrong.gather(1, order), -1)
    return nn.functional.pad(found, (0, size - found.shape[1]), value=-1)


class Siblings(nn.Module):
    """Labels with a parent in common."""

    starts: Tensor  # (2, num_labels + 1): parents, and children, of each label are in `members`
    members: Tensor  # (2, pairs)

    def __init__(self, space: LabelSpace) -> None:
        super().__init__()
        child, parent = torch.tensor(space.parents, dtype=torch.long).view(-1, 2).T
        lists = []
        for key, value in ((child, parent), (parent, child)):
            order = key.argsort(stable=True)
            counts = key.bincount(minlength=space.num_labels)
            lists.append((nn.functional.pad(counts.cumsum(0), (1, 0)), value[order]))
        starts, members = zip(*lists, strict=True)
        self.register_buffer("starts", torch.stack(starts), persistent=False)
        self.register_buffer("members", torch.stack(members), persistent=False)

    def draw(self, labels: Tensor, size: int) -> Tensor:
        """Up to `size` random siblings of each label, (any,)."""
        labels = labels.repeat(size)
        for starts, members in zip(self.starts, self.members, strict=True):  # a random parent, and a random child of it
            first, counts = starts[labels], starts[labels + 1] - starts[labels]
            first, counts = first[counts > 0], counts[counts > 0]
            place = (torch.rand(len(first), device=first.device) * counts).long()
            labels = members[first + torch.minimum(place, counts - 1)]  # the product may round up
        return labels
