"""A small corpus for HTTN, and transitions over given features."""

from __future__ import annotations

import torch

from datamodules.batch import Targets
from heads import PrototypeTransfer
from tests.support.documents import label_space, seeded
from tests.support.documents import vector_features as wrap
from tests.support.transitions import Recorded

DIM = 7


def transition(pooled, targets, **settings):
    """A transition over documents with these vectors."""
    return Recorded(wrap(pooled), targets, **{"seed": 3, "batch_size": 4} | settings)


def corpus(num_documents=60, counts=(30, 20, 12, 9, 3, 2, 1), seed=0, unseen=0):
    """A label space with these document counts, targets and document vectors."""
    generator = seeded(seed)
    lists = [[] for _ in range(num_documents)]
    for label, count in enumerate(counts):
        for row in torch.randperm(num_documents, generator=generator)[:count].tolist():
            lists[row].append(label)
    if unseen:
        lists[0].append(len(counts) + 1)
    return (
        label_space(counts, num_documents),
        Targets.from_lists(lists),
        torch.randn(num_documents, DIM, generator=generator),
    )


def build(space, seed=0, **settings):
    torch.manual_seed(seed)
    return PrototypeTransfer(DIM, space, **{"hidden": 5, "draws": 6} | settings)


def transferred(space, targets, pooled, **settings):
    head = build(space, **settings)
    context = transition(pooled, targets)
    head.transfer(context)
    return head, context


def members_of(targets, label):
    return [i for i in range(len(targets)) if label in targets.indices[targets.indptr[i] : targets.indptr[i + 1]]]
