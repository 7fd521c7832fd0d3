"""Tree heads on random features, and their equations one node at a time."""

from __future__ import annotations

import torch

from datamodules.batch import Targets
from heads import PLT
from heads.tree.candidates import DotLevel
from heads.tree.plt import TreeSettings
from tests.support.documents import label_space, token_features

DIM, LABELS = 6, 23
SPACE = label_space([60 - 2 * i for i in range(LABELS)], 90, unseen=["u"])
LENGTHS = [7, 3, 5, 2, 6]
TRUTH = [[0, 5, 22], [1], [], [7, 8, 9, 10, 11, 12], [3, 23]]  # 23 was never seen in training
SHAPES = [TreeSettings(clusters=8), TreeSettings(clusters=16, height=2, fanout=4), TreeSettings(clusters=4, count=3)]


def features(docs=5, layers=1):
    return token_features((LENGTHS * (docs // len(LENGTHS) + 1))[:docs], DIM, layers)


def targets(truth=TRUTH):
    return Targets.from_lists(truth)


def made(kind=PLT, tree=SHAPES[0], beam=3, **settings):
    """A head with large random weights and shuffled clusters."""
    torch.manual_seed(0)
    settings = {"hidden": [8]} | settings if kind is PLT else {"hidden": 4, "dropout": 0.0} | settings
    head = kind(DIM, SPACE, tree=tree, beam=beam, **settings)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    for planted in head.trees:
        planted.plant(planted.cluster_of[torch.randperm(LABELS)])
    return head


def logit(level, given, doc, node):
    """Logit of one node for one document."""
    if isinstance(level, DotLevel):
        vectors = torch.cat([given.vector(layer)[doc] for layer in range(-level.layers, 0)])
        row = level.table.weight[node]
        return level.project(vectors) @ row[:-1] + row[-1]
    tokens = given.states(level.layer)[doc, : int(given.mask[doc].sum())]
    x = torch.softmax(tokens @ level.table.weight[node], dim=0) @ tokens
    for layer in (level.first, *level.rest[:-1]):
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return level.rest[-1](x).squeeze()


def path_of(tree, label):
    """Nodes from the root to a label."""
    node, path = int(tree.cluster_of[label]), [label]
    for depth in range(tree.last - 1, -1, -1):
        path.insert(0, node)
        if depth:
            node //= tree.widths[depth] // tree.widths[depth - 1]
    return path


def probability(tree, given, doc, label, weight=1.0):
    """Product of probabilities along the path; `weight` is the exponent of the product so far at each step."""
    chance = torch.tensor(1.0)
    for level, node in zip(tree.levels, path_of(tree, label), strict=True):
        chance = chance**weight * logit(level, given, doc, node).double().sigmoid()
    return chance
