"""Level by level: which of them is trained, what it begins with, and an encoder for each."""

from __future__ import annotations

import pytest
import torch
from scipy.sparse import csr_array

from backbones import BiLSTM, PerLevel, Transformer
from callbacks.transition import parts_at_rest
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from heads import PLT
from heads.label_tree import ancestor
from heads.plt import TreeSettings
from tests.unit.trees import LABELS, SHAPES, features, made, path_of, probability, targets

SPACE = LabelSpace([f"l{i}" for i in range(8)], [9, 8, 7, 6, 5, 4, 3, 2], 12, vocab_size=8)


class Context:
    """A transition over eight documents, each with a label and a word of its own; the first four share more words."""

    seed, epoch, first = 3, 0, True

    def __init__(self, backbone=None, **settings):
        self.backbone = backbone
        vars(self).update(settings)

    def train_targets(self):
        return Targets.from_lists([[label] for label in range(8)])

    def train_words(self, lead=0):
        words = torch.arange(8) // 4 * 2
        counts = torch.zeros(8, 8).scatter(1, words[:, None], 3.0).scatter(1, words[:, None] + 1, 2.0)
        return csr_array((counts + torch.eye(8)).numpy())

    def track(self, items, what):
        return iter(items)


def documents():
    ids = torch.arange(1, 8).repeat(3, 1)
    return Batch(ids, ids > 0, Targets.from_lists([[0], [1], [2]]), torch.arange(3))


def encoder(space):
    return BiLSTM(space, embed_dim=4, hidden=3, dropout=0.0, embed_dropout=0.0)


@pytest.fixture
def head():
    torch.manual_seed(0)
    return PLT(6, SPACE, hidden=[8], tree=TreeSettings(clusters=4, count=2))


def test_labels_whose_documents_have_the_same_words_come_together(head):
    assert head.pending == ("build_tree",)
    head.build_tree(Context())
    assert head.pending == ()
    for tree in head.trees:
        halves = ancestor(tree.cluster_of, 4, 2)
        assert halves.tolist() in ([0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0])
        assert tree.cluster_of.bincount().tolist() == [2, 2, 2, 2]
        for cluster, labels in enumerate(tree.labels_of.tolist()):
            assert labels == (tree.cluster_of == cluster).nonzero().flatten().tolist()


def test_trees_differ_and_a_seed_makes_them_again(head):
    again, other = ({}, {"seed": 4})
    clusters = []
    for settings in (again, again, other):
        head.build_tree(Context(**settings))
        clusters.append([tree.cluster_of.tolist() for tree in head.trees])
    assert clusters[0] == clusters[1]
    assert len({tuple(tree) for trees in clusters for tree in trees}) > 2


def test_another_process_waits_for_the_first(head):
    before = [tree.cluster_of.clone() for tree in head.trees]
    head.build_tree(Context(first=False))
    assert all(torch.equal(one, tree.cluster_of) for one, tree in zip(before, head.trees, strict=True))
    assert head.pending == ()


@pytest.mark.parametrize("tree", SHAPES[:2], ids=["one-level", "two-levels"])
def test_one_level_after_the_other(tree):
    head, given = made(tree=tree), features()
    together = head.loss(given, targets(), "train")
    head.start_levels(Context())
    losses = []
    for level in range(len(head.widths) + 1):
        if level:
            kept = [head.trees[0].levels[level].table.weight.clone(), head.trees[0].levels[level - 1].first.weight]
            head.start_next_level(Context())
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
    ("done", "transitions", "line"),
    [
        (-1, ["build_tree"], None),
        (-1, ["build_tree", "start_levels", "start_next_level", "start_next_level"], None),
        (0, ["start_next_level", "start_next_level"], None),
        (2, [], None),
        (-1, ["build_tree", "start_next_level"], "none before it has `start_levels`"),
        (-1, ["build_tree", "start_levels", "start_next_level"], "2 of the stages to come .* and 1 have it"),
        (1, [], "1 of the stages to come .* and 0 have it"),
    ],
)
def test_all_levels_must_have_their_stage(done, transitions, line):
    head = made(tree=SHAPES[1])
    head.level.fill_(done)
    if line is None:
        head.check_plan(transitions)
    else:
        with pytest.raises(UserError, match=line):
            head.check_plan(transitions)


def test_a_tree_of_another_shape_must_be_built_anew(head):
    head.build_tree(Context())
    assert head.pending == ()
    other = PLT(6, SPACE, hidden=[8], tree=TreeSettings(clusters=2, count=2))
    fitting = {n: v for n, v in head.state_dict().items() if other.state_dict()[n].shape == v.shape}
    other.load_state_dict(fitting, strict=False)
    assert bool(other.grown)
    assert other.pending == ("build_tree",)


def test_the_losses_of_levels_add_up_to_the_one_of_all():
    head, given = made(), features()
    together = head.loss(given, targets(), "train")
    head.level.fill_(0)
    assert head.loss(given, targets(), "train")["loss"].item() == pytest.approx(together["clusters"].item())
    head.level.fill_(1)
    assert head.loss(given, targets(), "train")["loss"].item() == pytest.approx(together["labels"].item())


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_labels_of_a_level_to_come_are_ranked_by_cluster_and_frequency(weight):
    head, given = made(beam=8, path_weight=weight), features()
    head.start_levels(Context())
    (tree,), ranking = head.trees, head.rank(given, LABELS)
    chances = tree.level(0).logits(given, None).sigmoid()
    for doc in range(len(chances)):
        expected = sorted(range(LABELS), key=lambda label: (-chances[doc, path_of(tree, label)[0]].item(), label))
        assert ranking.labels[doc].tolist() == expected
    head.start_next_level(Context())
    best = int(head.rank(given, 1).labels[0, 0])
    expected = probability(tree, given, 0, best, weight).item()
    assert head.rank(given, 1).scores[0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_copies_are_layers_and_those_to_come_do_not_run():
    torch.manual_seed(0)
    backbone, batch = PerLevel(SPACE, encoder, levels=3), documents()
    first, second, _ = backbone.encoders
    assert torch.equal(backbone(batch).states(2), second(batch).tokens)  # all of them run to begin with
    backbone.begin(0)
    found = backbone(batch)
    assert backbone.num_layers == len(found.layers) == 3
    for layer in (1, 2, 3, -1):
        assert torch.equal(found.states(layer), first(batch).tokens)
        assert torch.equal(found.vector(layer), first(batch).pooled)
    assert not torch.equal(second(batch).tokens, first(batch).tokens)
    backbone.begin(1)
    assert torch.equal(second(batch).tokens, first(batch).tokens)  # begins as the one above
    torch.nn.init.normal_(second.embedding.weight)
    found = backbone(batch)
    assert torch.equal(found.states(1), first(batch).tokens)
    assert torch.equal(found.states(2), second(batch).tokens)
    assert torch.equal(found.tokens, second(batch).tokens)


def test_a_head_begins_the_encoder_of_its_level():
    torch.manual_seed(0)
    backbone = PerLevel(SPACE, encoder)
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4), layer_per_level=True)
    assert head.needs_layers == 2
    assert [level.layer for level in head.trees[0].levels] == [1, 2]
    context = Context(backbone)
    head.start_levels(context)
    assert int(backbone.level) == 0
    head.start_next_level(context)
    assert int(backbone.level) == 1


def test_copies_need_a_head_that_reads_one_at_each_level():
    backbone = PerLevel(SPACE, encoder)
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4))
    with pytest.raises(UserError, match=r"an encoder for each level: set --model\.head\.layer_per_level=true"):
        head.start_levels(Context(backbone))


def test_candidates_stay_while_the_labels_learn():
    """The level above and its encoder rest, without dropout, whatever the level and the encoder below do."""
    torch.manual_seed(0)
    backbone = PerLevel(SPACE, lambda space: BiLSTM(space, embed_dim=4, hidden=3, dropout=0.5, embed_dropout=0.5))
    head = PLT(backbone.dim, SPACE, hidden=[8], tree=TreeSettings(clusters=4), beam=2, layer_per_level=True)
    context, batch, module = Context(backbone), documents(), torch.nn.ModuleList([backbone, head])
    for transition in (head.build_tree, head.start_levels, head.start_next_level):
        transition(context)
    for name, parameter in module.named_parameters():
        parameter.requires_grad = "encoders.1." in name or "levels.1." in name
    module.train()
    for part in parts_at_rest(module):
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


def test_word_vectors_go_to_all_copies():
    backbone, vectors = PerLevel(SPACE, encoder), torch.rand(SPACE.vocab_size, 4)
    backbone.load_vectors(vectors)
    assert all(torch.equal(copy.embedding.weight, vectors) for copy in backbone.encoders)
    with pytest.raises(UserError, match=r"set --model\.backbone\.encoder\.init_args\.embed_dim=5"):
        backbone.load_vectors(torch.rand(SPACE.vocab_size, 5))


def transformer(space):
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return Transformer(space, name="bert", pretrained=False, config=config)


def test_copies_that_cannot_be():
    with pytest.raises(UserError, match="PerLevel cannot copy Transformer: let all levels read one encoder"):
        PerLevel(SPACE, transformer)
    with pytest.raises(UserError, match=r"--model\.backbone\.levels=0 is too low"):
        PerLevel(SPACE, encoder, levels=0)
    with pytest.raises(UserError, match=r"level 3 has no encoder: set --model\.backbone\.levels=3 or more"):
        PerLevel(SPACE, encoder).begin(2)
