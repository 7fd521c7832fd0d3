"""Training a tree level by level: which level is trained, its initial weights, and an encoder for each."""

import pytest
import torch
from scipy.sparse import csr_array

from backbones import BiLSTM, PerLevel
from callbacks.transition import frozen_modules
from datamodules.batch import Batch, Targets
from heads import PLT, TransitionContext
from heads.tree.label_tree import ancestor
from heads.tree.plt import TreeSettings
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.trees import LABELS, SHAPES, features, made, path_of, probability, targets
from zoo.core.errors import UserError

SPACE = label_space([9, 8, 7, 6, 5, 4, 3, 2], 12, vocab_size=8)


def transition(backbone=None, **settings):
    """Eight documents with a label and a word of their own each; each half shares two more words."""
    shared = torch.arange(8) // 4 * 2
    counts = torch.zeros(8, 8).scatter(1, shared[:, None], 3.0).scatter(1, shared[:, None] + 1, 2.0) + torch.eye(8)
    truth = Targets.from_lists([[label] for label in range(8)])
    words = csr_array(counts.numpy())
    return TransitionContext(words=words, targets=truth, backbone=backbone, **{"seed": 3} | settings)


def documents():
    ids = torch.arange(1, 8).repeat(3, 1)
    return Batch(ids, ids > 0, Targets.from_lists([[0], [1], [2]]), torch.arange(3))


def encoder(space):
    return BiLSTM(space, embed_dim=4, hidden=3, dropout=0.0, embed_dropout=0.0)


@pytest.fixture
def head():
    torch.manual_seed(0)
    return PLT(6, SPACE, hidden=[8], tree=TreeSettings(clusters=4, count=2))


def test_labels_of_similar_documents_share_clusters(head):
    assert head.pending == ("build_tree",)
    head.build_tree(transition())
    assert head.pending == ()
    for tree in head.trees:
        halves = ancestor(tree.cluster_of, 4, 2)
        assert halves.tolist() in ([0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0])
        assert tree.cluster_of.bincount().tolist() == [2, 2, 2, 2]
        for cluster, labels in enumerate(tree.labels_of.tolist()):
            assert labels == (tree.cluster_of == cluster).nonzero().flatten().tolist()


def test_trees_follow_the_seed(head):
    again, other = ({}, {"seed": 4})
    clusters = []
    for settings in (again, again, other):
        head.build_tree(transition(**settings))
        clusters.append([tree.cluster_of.tolist() for tree in head.trees])
    assert clusters[0] == clusters[1]
    assert len({tuple(tree) for trees in clusters for tree in trees}) > 2


def test_other_processes_wait_for_the_first(head):
    before = [tree.cluster_of.clone() for tree in head.trees]
    head.build_tree(transition(first=False))
    assert all(torch.equal(one, tree.cluster_of) for one, tree in zip(before, head.trees, strict=True))
    assert head.pending == ()


@pytest.mark.parametrize("tree", SHAPES[:2], ids=["one-level", "two-levels"])
def test_levels_are_trained_one_after_the_other(tree):
    head, given = made(tree=tree), features()
    together = head.loss(given, targets(), "train")
    head.start_levels(transition())
    losses = []
    for level in range(len(head.widths) + 1):
        if level:
            kept = [head.trees[0].levels[level].table.weight.clone(), head.trees[0].levels[level - 1].first.weight]
            head.start_next_level(transition())
            assert torch.equal(head.trees[0].levels[level].table.weight, kept[0])
            assert torch.equal(head.trees[0].levels[level].first.weight, kept[1])
        head.zero_grad()
        (loss,) = head.loss(given, targets(), "train").values()
        loss.backward()
        for depth, part in enumerate(head.trees[0].levels):
            assert any(p.grad is not None and p.grad.any() for p in part.parameters()) == (depth == level)
        losses.append(loss.item())
    assert losses[0] < together["loss"].item()


@pytest.mark.parametrize(
    ("done", "transitions", "names"),
    [
        (-1, ["build_tree"], None),
        (-1, ["build_tree", "start_levels", "start_next_level", "start_next_level"], None),
        (0, ["start_next_level", "start_next_level"], None),
        (2, [], None),
        (-1, ["build_tree", "start_next_level"], ["start_levels", "start_next_level"]),
        (-1, ["build_tree", "start_levels", "start_next_level"], [2, 1]),
        (1, [], [1, 0]),
    ],
)
def test_every_level_needs_a_stage(done, transitions, names):
    head = made(tree=SHAPES[1])
    head.level.fill_(done)
    if names is None:
        head.check_plan(transitions)
    else:
        with raises(UserError, *names):
            head.check_plan(transitions)


def test_a_tree_of_another_shape_must_be_rebuilt(head):
    head.build_tree(transition())
    assert head.pending == ()
    other = PLT(6, SPACE, hidden=[8], tree=TreeSettings(clusters=2, count=2))
    fitting = {n: v for n, v in head.state_dict().items() if other.state_dict()[n].shape == v.shape}
    other.load_state_dict(fitting, strict=False)
    assert bool(other.grown)
    assert other.pending == ("build_tree",)


def test_losses_of_levels_add_up():
    head, given = made(), features()
    together = head.loss(given, targets(), "train")
    head.level.fill_(0)
    assert head.loss(given, targets(), "train")["loss"].item() == pytest.approx(together["clusters"].item())
    head.level.fill_(1)
    assert head.loss(given, targets(), "train")["loss"].item() == pytest.approx(together["labels"].item())


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_labels_of_an_untrained_level_are_ranked_by_cluster(weight):
    head, given = made(beam=8, path_weight=weight), features()
    head.start_levels(transition())
    (tree,), ranking = head.trees, head.rank(given, LABELS)
    chances = tree.level(0).logits(given, None).sigmoid()
    for doc in range(len(chances)):
        expected = sorted(range(LABELS), key=lambda label: (-chances[doc, path_of(tree, label)[0]].item(), label))
        assert ranking.labels[doc].tolist() == expected
    head.start_next_level(transition())
    best = int(head.rank(given, 1).labels[0, 0])
    expected = probability(tree, given, 0, best, weight).item()
    assert head.rank(given, 1).scores[0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_starting_a_level_starts_its_encoder():
    torch.manual_seed(0)
    backbone = PerLevel(SPACE, encoder)
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4), layer_per_level=True)
    assert head.needs_layers == 2
    assert [level.layer for level in head.trees[0].levels] == [1, 2]
    context = transition(backbone)
    head.start_levels(context)
    assert int(backbone.level) == 0
    head.start_next_level(context)
    assert int(backbone.level) == 1


def test_per_level_encoders_need_layer_per_level():
    backbone = PerLevel(SPACE, encoder)
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4))
    with raises(UserError, "`layer_per_level=True`"):
        head.start_levels(transition(backbone))


def test_candidates_are_fixed_while_the_labels_are_trained():
    """The upper level and its encoder are frozen and without dropout."""
    torch.manual_seed(0)
    backbone = PerLevel(SPACE, lambda space: BiLSTM(space, embed_dim=4, hidden=3, dropout=0.5, embed_dropout=0.5))
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4), beam=2, layer_per_level=True)
    context, batch, module = transition(backbone), documents(), torch.nn.ModuleList([backbone, head])
    for method in (head.build_tree, head.start_levels, head.start_next_level):
        method(context)
    for name, parameter in module.named_parameters():
        parameter.requires_grad = "encoders.1." in name or "levels.1." in name
    module.train()
    for part in frozen_modules(module):
        part.training = False
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0)
    seen, level = [], head.trees[0].level(1)
    level.loss, loss = lambda f, nodes, *rest: (seen.append(nodes.clone()), loss(f, nodes, *rest))[1], level.loss
    for _ in range(4):
        optimizer.zero_grad()
        head.loss(backbone(batch), batch.targets, "labels")["loss"].backward()
        optimizer.step()
    assert all(torch.equal(nodes, seen[0]) for nodes in seen)
    assert (seen[0] >= 0).sum() < batch.targets.indptr[-1] * 8  # some clusters are left out
