"""Heads of experts and their logits by a slow loop."""

from __future__ import annotations

import torch

from datamodules.batch import Targets
from heads import Experts
from heads.experts.multi_layer import ExpertSettings
from tests.support.documents import label_space, token_features

COUNTS = [60, 40, 30, 22, 9, 5, 4, 2, 1]
SPACE = label_space(COUNTS, 80, vocab_size=30, unseen=["u"])
TRUTH = Targets.from_lists([[0, 3], [1, 8], [], [2, 5, 9]])  # 9 is a label that training never saw
LENGTHS = [6, 3, 1, 5]
DIM, LAYERS = 12, 3
THREE = [ExpertSettings("label_attention", 1), ExpertSettings("label_attention", 2), ExpertSettings("cls", -1)]


def features():
    return token_features(LENGTHS, DIM, LAYERS, seed=1)


def head(experts=THREE, seed=0, space=SPACE, dropout=0.0, **settings):
    torch.manual_seed(seed)
    return Experts(DIM, space, experts, hidden=7, dropout=dropout, **settings)


def diverse(*args, **settings):
    made = head(*args, **settings)
    made.start_diversity(None)
    return made


def slow_logits(made, given):
    """Logits (experts, docs, labels), one pair at a time."""
    out = torch.zeros(len(made.parts), len(LENGTHS), SPACE.num_labels)
    for e, (name, expert) in enumerate(made.experts.items()):
        for doc, length in enumerate(LENGTHS):
            for label in range(SPACE.num_labels):
                if name.startswith("D"):
                    x = expert.first(torch.cat([given.vector(layer)[doc] for layer in expert.layers]))
                    out[e, doc, label] = x @ expert.weight[label] + expert.bias[label]
                else:
                    tokens = given.states(expert.layer)[doc, :length]
                    weights = (tokens @ expert.query[label]).softmax(0)
                    x = expert.first(weights @ tokens).relu()
                    out[e, doc, label] = expert.last(x)[0] + expert.bias.expand(9)[label]
    return out
