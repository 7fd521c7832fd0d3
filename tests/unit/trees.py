"""Heads with label trees on made-up features, and a slow loop over them."""

from __future__ import annotations

import torch

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import PLT
from heads.candidates import DotLevel
from heads.plt import TreeSettings

DIM, LABELS = 6, 23
SPACE = LabelSpace([f"l{i}" for i in range(LABELS)], [60 - 2 * i for i in range(LABELS)], 90, 9, unseen=["u"])
LENGTHS = [7, 3, 5, 2, 6]
TRUTH = [[0, 5, 22], [1], [], [7, 8, 9, 10, 11, 12], [3, 23]]  # 23 was never seen in training
SHAPES = [TreeSettings(clusters=8), TreeSettings(clusters=16, height=2, fanout=4), TreeSettings(clusters=4, count=3)]


def features(docs=5, layers=1):
    lengths = torch.tensor((LENGTHS * (docs // len(LENGTHS) + 1))[:docs])
    mask = torch.arange(max(LENGTHS)) < lengths[:, None]
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(*mask.shape, DIM, generator=generator) * mask.unsqueeze(-1) for _ in range(layers)]
    for state in states:
        state.requires_grad_()
    vectors = tuple(state.sum(1) for state in states)
    return Features(states[-1], mask, vectors[-1], tuple(states), vectors)


def targets(truth=TRUTH):
    return Targets.from_lists(truth)


def made(kind=PLT, tree=SHAPES[0], beam=3, **settings):
    """A head far from where it begins, with clusters that are not in the order of labels."""
    torch.manual_seed(0)
    settings = {"hidden": [8]} | settings if kind is PLT else {"hidden": 4, "dropout": 0.0} | settings
    head = kind(DIM, SPACE, tree=tree, beam=beam, **settings)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    for planted in head.trees:
        planted.plant(planted.cluster_of[torch.randperm(LABELS)])
    return head


def logit(level, given, doc, node):
    """Of one node for one document, by the equations."""
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
    """The nodes from the top to a label, by walking up."""
    node, path = int(tree.cluster_of[label]), [label]
    for depth in range(tree.last - 1, -1, -1):
        path.insert(0, node)
        if depth:
            node //= tree.widths[depth] // tree.widths[depth - 1]
    return path


def probability(tree, given, doc, label, weight=1.0):
    """The product along the path, that of all above the label to the power of `weight` at each step."""
    chance = torch.tensor(1.0)
    for level, node in zip(tree.levels, path_of(tree, label), strict=True):
        chance = chance**weight * logit(level, given, doc, node).double().sigmoid()
    return chance
