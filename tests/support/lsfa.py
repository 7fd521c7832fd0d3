"""Documents of several tokens for LSFA, and transitions over them."""

from __future__ import annotations

import torch

from backbones.base import Features
from datamodules.batch import Targets
from heads import PvaeAugmentor
from heads.augment.pvae import PVAETraining
from tests.support.httn import corpus, seeded
from tests.support.transitions import Recorded

DIM = 6


def documents(size, dim=DIM, longest=5, seed=0):
    """Random features of documents with 1 to `longest` tokens."""
    generator = seeded(seed)
    lengths = torch.randint(1, longest + 1, (size,), generator=generator)
    mask = torch.arange(longest) < lengths[:, None]
    tokens = torch.randn(size, longest, dim, generator=generator) * mask.unsqueeze(-1)
    return Features(tokens, mask, tokens.sum(1) / lengths[:, None], (tokens,))


def some(features, targets, rows):
    """Features and labels of these rows."""
    tokens = features.tokens[rows]
    lists = [part.tolist() for part in targets.indices.split(targets.counts.tolist())]
    part = Features(tokens, features.mask[rows], features.pooled[rows], (tokens,))
    return part, Targets.from_lists([lists[row] for row in rows.tolist()])


def transition(features, targets, **settings):
    """A transition over these documents."""
    return Recorded(features, targets, **{"seed": 3, "batch_size": 7} | settings)


def build(space, dim=DIM, seed=0, **settings):
    torch.manual_seed(seed)
    small = {"feat_dim": 5, "head_count": 10, "pvae_hidden": 8, "latent": 4, "pvae": PVAETraining(epochs=2)}
    return PvaeAugmentor(dim, space, **small | settings)


def prepared(counts=(30, 20, 12, 9, 3, 1), unseen=0, **settings):
    """A new head and a transition over a corpus with these document counts."""
    space, targets, _ = corpus(counts=counts, unseen=unseen)
    return build(space, **settings), transition(documents(len(targets)), targets)


def adjusting(**settings):
    """A head and its transition, after all stages but the last."""
    head, context = prepared(**settings)
    for method in ("collect_bank", "train_pvae", "start_adjustment"):
        getattr(head, method)(context)
    return head, context


def ignore_noise(head):
    """Make all generated features of a label equal."""
    with torch.no_grad():
        head.pvae.decode[0].weight[:, : head.pvae.latent] = 0
