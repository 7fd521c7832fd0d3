"""What the tests of experts share."""

from __future__ import annotations

import torch

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import Experts
from heads.experts import ExpertSettings

COUNTS = [60, 40, 30, 22, 9, 5, 4, 2, 1]
SPACE = LabelSpace([f"l{i}" for i in range(9)], COUNTS, num_documents=80, vocab_size=30, unseen=["u"])
TRUTH = Targets.from_lists([[0, 3], [1, 8], [], [2, 5, 9]])  # 9 is a label that training never saw
LENGTHS = [6, 3, 1, 5]
DIM, LAYERS = 12, 3
THREE = [ExpertSettings("label_attention", 1), ExpertSettings("label_attention", 2), ExpertSettings("cls", -1)]


def features(extra=0, garbage=0.0):
    """Four documents; `extra` positions of padding, which hold `garbage`."""
    torch.manual_seed(1)
    mask = torch.arange(max(LENGTHS) + extra) < torch.tensor(LENGTHS).unsqueeze(1)
    layers = []
    for _ in range(LAYERS):
        states = torch.full((4, max(LENGTHS) + extra, DIM), garbage)
        states[:, : max(LENGTHS)] = torch.randn(4, max(LENGTHS), DIM)
        layers.append(states * mask.unsqueeze(-1) + garbage * ~mask.unsqueeze(-1))
    layers = [layer.requires_grad_() for layer in layers]
    vectors = tuple(layer[:, 0] for layer in layers)
    return Features(layers[-1], mask, vectors[-1], tuple(layers), vectors)


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
                    x = expert.first(given.vector(expert.layer)[doc])
                    out[e, doc, label] = x @ expert.weight[label] + expert.bias[label]
                else:
                    tokens = given.states(expert.layer)[doc, :length]
                    weights = (tokens @ expert.query[label]).softmax(0)
                    x = expert.first(weights @ tokens).relu()
                    out[e, doc, label] = expert.last(x)[0] + expert.bias.expand(9)[label]
    return out
