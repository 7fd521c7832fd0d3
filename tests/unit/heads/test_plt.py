"""Tree heads against their equations, one document and one node at a time."""

import pytest
import torch
import torch.nn.functional as F

from datamodules.batch import Targets
from heads import PLT, LightXML
from heads.tree.plt import TreeSettings
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.tensors import LargestTensor
from tests.support.trees import DIM, LABELS, SHAPES, SPACE, TRUTH, features, logit, made, path_of, probability, targets
from zoo.core.errors import UserError

kinds = pytest.mark.parametrize("kind", [PLT, LightXML])
shapes = pytest.mark.parametrize("tree", SHAPES, ids=["one-level", "two-levels", "three-trees"])
KNOWN = [[label for label in row if label < LABELS] for row in TRUTH]


def candidates(head, given, truth=TRUTH):
    """Training candidates of each tree, level and document, by sorting logits."""
    found = []
    for tree in head.trees:
        paths = {label: path_of(tree, label) for label in range(LABELS)}
        levels = [[set(range(tree.widths[0])) for _ in truth]]
        chances = [dict.fromkeys(range(tree.widths[0]), 0.0) for _ in truth]
        for depth in range(tree.last):
            below = []
            for doc, labels in enumerate(truth):
                for node in levels[-1][doc]:
                    chances[doc][node] += F.logsigmoid(logit(tree.levels[depth], given, doc, node)).item()
                true = {paths[label][depth] for label in labels if label < LABELS}
                others = sorted(levels[-1][doc] - true, key=lambda node, doc=doc: -chances[doc][node])
                chosen = true | set(others[: max(head.beam - len(true), 0)])
                children = {path[depth + 1]: path[depth] for path in paths.values() if path[depth] in chosen}
                chances[doc] = {child: chances[doc][parent] for child, parent in children.items()}
                below.append(set(children))
            levels.append(below)
        found.append(levels)
    return found


class Watched:
    """Records the candidates of a level of the first tree."""

    def __init__(self, head, depth=-1):
        self.level, self.loss = head.trees[0].levels[depth], head.trees[0].levels[depth].loss
        self.level.loss = self.noting

    def noting(self, features, nodes, true, real, *criterion):
        self.nodes, self.true = nodes, true
        return self.loss(features, nodes, true, real, *criterion)

    def sets(self):
        return [{node for node in row if node >= 0} for row in self.nodes.tolist()]


def test_probability_of_a_path_by_hand():
    """0.5 for the cluster times 0.4 for the label is 0.2; siblings do not sum to one."""
    head = made(LightXML, TreeSettings(clusters=4), beam=4)
    (tree,) = head.trees
    for level, chance in zip(tree.levels, (0.5, 0.4), strict=True):
        torch.nn.init.zeros_(level.table.weight)
        level.table.weight.data[:, -1] = torch.tensor(chance).logit()
    ranking = head.rank(features(), LABELS)
    assert torch.allclose(ranking.scores, torch.tensor(0.2))
    assert ranking.scores[0].sum() > 1


@shapes
def test_nodes_with_a_true_child_are_true(tree):
    for planted in made(tree=tree).trees:
        for depth, width in enumerate(planted.widths):
            nodes = planted.all_nodes(len(TRUTH), depth)
            got = planted.is_true(nodes, planted.truth(targets().below(LABELS), depth), depth)
            expected = torch.zeros(len(TRUTH), width, dtype=torch.bool)
            for doc, labels in enumerate(KNOWN):
                for label in labels:
                    expected[doc, path_of(planted, label)[depth]] = True
            assert torch.equal(got, expected)


@kinds
@shapes
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_beam_as_wide_as_the_tree_ranks_all_labels(kind, tree, weight):
    head, given = made(kind, tree, beam=64, path_weight=weight), features()
    pairs = [(doc, label) for doc in range(len(TRUTH)) for label in range(LABELS)]
    chances = [[probability(tree, given, *pair, weight).item() for tree in head.trees] for pair in pairs]
    dense = torch.tensor(chances).mean(1).view(len(TRUTH), LABELS)
    got = head.rank(given, LABELS)
    assert torch.allclose(got.scores, dense.sort(dim=1, descending=True).values.float(), atol=1e-6)
    assert torch.allclose(got.scores, dense.gather(1, got.labels).float(), atol=1e-6)
    assert torch.equal(got.labels.sort(dim=1).values, torch.arange(LABELS).expand(len(TRUTH), -1))


@kinds
@shapes
def test_loss_and_gradients_equal_a_loop(kind, tree):
    head, given = made(kind, tree), features()
    terms = head.loss(given, targets(), "train")
    by_level = torch.zeros(len(head.widths) + 1)
    for planted, levels in zip(head.trees, candidates(head, given), strict=True):
        for depth, nodes in enumerate(levels):
            for doc, chosen in enumerate(nodes):
                true = {path_of(planted, label)[depth] for label in KNOWN[doc]}
                for node in chosen:
                    score = logit(planted.levels[depth], given, doc, node)
                    by_level[depth] = by_level[depth] + F.softplus(score) - score * (node in true)
    by_level = by_level / (len(TRUTH) * len(head.trees))
    assert terms["clusters"].item() == pytest.approx(by_level[:-1].sum().item(), rel=1e-5)
    assert terms["labels"].item() == pytest.approx(by_level[-1].item(), rel=1e-5)
    assert terms["loss"].item() == pytest.approx(by_level.sum().item(), rel=1e-5)
    tensors = [given.tokens, *head.parameters()]
    grads = (torch.autograd.grad(loss, tensors, allow_unused=True) for loss in (terms["loss"], by_level.sum()))
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, torch.zeros_like(one) if other is None else other, atol=1e-5)


@shapes
def test_candidates_include_every_true_label(tree):
    """Even if their clusters are the least likely or more than the beam."""
    truth = [list(range(LABELS)), [1], [], [7, 8, 9, 10, 11, 12], [3]]
    for beam in (1, 3):
        head, given = made(LightXML, tree, beam), features()
        for planted in head.trees:
            for depth, level in enumerate(planted.levels[:-1]):
                torch.nn.init.zeros_(level.table.weight)
                for label in {label for labels in truth[1:] for label in labels}:
                    level.table.weight.data[path_of(planted, label)[depth], -1] = -100.0
        watched = Watched(head)
        head.loss(given, targets(truth), "train")
        for doc, labels in enumerate(truth):
            assert set(labels) <= watched.sets()[doc]
            assert sorted(watched.nodes[doc][watched.true[doc]].tolist()) == labels  # each once, each marked


def chosen(head, given, truth=TRUTH):
    watched = Watched(head)
    head.loss(given, targets(truth), "train")
    return watched.sets()


def test_candidates_do_not_depend_on_other_documents():
    """Another document with labels in all clusters widens its own candidates only."""
    head, given = made(beam=2), features()
    alone, beside = ([[1], [], [0], [2], [3]], [[1], list(range(LABELS)), [0], [2], [3]])
    one, other = (chosen(head, given, truth) for truth in (alone, beside))
    assert [one[doc] for doc in (0, 2, 3, 4)] == [other[doc] for doc in (0, 2, 3, 4)]


def test_the_loss_of_labels_does_not_reach_the_clusters():
    head = made(cluster_weight=0.0)
    head.loss(features(), targets(), "train")["loss"].backward()
    clusters, labels = head.trees[0].levels
    assert all(not p.grad.any() for p in clusters.parameters())
    assert all(p.grad.any() for p in labels.parameters())


def test_unlikely_labels_of_several_trees_are_kept():
    head = made(LightXML, SHAPES[2], beam=4)
    for tree in head.trees:
        for level in tree.levels:
            torch.nn.init.zeros_(level.table.weight)
            level.table.weight.data[:, -1] = -70.0  # exp(-140) is no number in single precision
    assert (head.rank(features(), LABELS).labels >= 0).all()


def test_trees_that_miss_a_label_count_as_zero():
    head, given = made(tree=SHAPES[2], beam=1), features()
    got = head.rank(given, LABELS)
    for doc in range(len(TRUTH)):
        expected = torch.zeros(LABELS)
        for tree in head.trees:
            chances = [logit(tree.levels[0], given, doc, node).item() for node in range(4)]
            found = max(range(4), key=chances.__getitem__)
            for label in range(LABELS):
                if int(tree.cluster_of[label]) == found:
                    expected[label] += probability(tree, given, doc, label).item() / 3
        known = got.labels[doc] >= 0
        assert torch.allclose(got.scores[doc][known], expected[got.labels[doc][known]], atol=1e-6)
        assert int(known.sum()) == int((expected > 0).sum())


@kinds
@shapes
def test_sparse_gradients_equal_dense_ones(kind, tree):
    grads = []
    for above in (10**6, 5):
        head = made(kind, tree, sparse_above=above)
        head.loss(features(), targets(), "train")["loss"].backward()
        grads.append({name: p.grad for name, p in head.named_parameters()})
    assert any(grad.is_sparse for grad in grads[1].values())
    assert not any(grad.is_sparse for grad in grads[0].values())
    for name, grad in grads[1].items():
        assert torch.allclose(grad.to_dense() if grad.is_sparse else grad, grads[0][name], atol=1e-6), name


def test_recall_of_the_beam():
    head, given = made(beam=2), features()
    (tree,) = head.trees
    got = head.checks(given, targets())
    for doc, labels in enumerate(KNOWN):
        chances = [logit(tree.levels[0], given, doc, node).item() for node in range(8)]
        beam = sorted(range(8), key=chances.__getitem__)[-2:]
        true = {int(tree.cluster_of[label]) for label in labels}
        if not labels:
            assert got["clusters@beam"][doc].isnan()
            assert got["labels@beam"][doc].isnan()
            continue
        assert got["clusters@beam"][doc].item() == pytest.approx(len(true & set(beam)) / len(true))
        found = sum(int(tree.cluster_of[label]) in beam for label in labels)
        assert got["labels@beam"][doc].item() == pytest.approx(found / len(labels))


def test_lightxml_concatenates_the_last_layers():
    head, given = made(LightXML, layers=2), features(layers=3)
    level = head.trees[0].levels[0]
    assert level.table.embedding_dim == 2 * DIM + 1
    got = level.logits(given, None)
    assert torch.allclose(got[1, 5], logit(level, given, 1, 5), atol=1e-5)
    assert head.needs_layers == 2


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"beam": 0}, ["`beam=0`"]),
        ({"cluster_weight": -1.0}, ["`cluster_weight=-1.0`"]),
        ({"hidden": []}, ["`hidden=[]`"]),
        ({"tree": TreeSettings(clusters=4, max_leaf=9)}, ["`tree.clusters`", "max_leaf", 9]),
        ({"tree": TreeSettings(clusters=32)}, ["`tree.clusters=32`", LABELS]),
    ],
)
def test_invalid_settings_are_rejected(settings, names):
    with raises(UserError, *names):
        PLT(DIM, SPACE, **settings)


@kinds
def test_no_tensor_has_documents_times_labels_elements(kind):
    docs, labels = 64, 50_000
    space, tree = label_space([3] * labels, 1000), TreeSettings(clusters=2048, height=2)
    head = kind(DIM, space, hidden=[8] if kind is PLT else 4, tree=tree, sparse_above=999)
    truth = Targets.from_lists([[7 * doc, 400 * doc] for doc in range(docs)])
    with LargestTensor() as largest:
        head.loss(features(docs), truth, "train")["loss"].backward()
        head.eval().rank(features(docs), 100)
        head.checks(features(docs), truth)
    assert 0 < largest.numel < docs * labels / 6
    assert head.trees[0].levels[-1].table.weight.grad.is_sparse


def test_lightxml_biases_start_at_label_frequencies():
    head = LightXML(DIM, SPACE, tree=TreeSettings(clusters=8), beam=2)
    clusters, labels = (level.table.weight[:, -1].sigmoid() for level in head.trees[0].levels)
    assert torch.allclose(clusters, torch.tensor(0.5))  # 874 labels of 90 documents
    assert torch.allclose(labels, (SPACE.prior() * 8 / 2).clamp_max(0.5), atol=1e-6)
    rare = label_space([2] * LABELS, 400)
    head = LightXML(DIM, rare, tree=TreeSettings(clusters=8))
    clusters, labels = (level.table.weight[:, -1].sigmoid() for level in head.trees[0].levels)
    assert torch.allclose(clusters, torch.tensor(2 * LABELS / 400 / 8))
    assert torch.allclose(labels, rare.prior())  # the beam is as wide as the tree


def test_documents_without_known_labels_have_a_finite_loss():
    assert made().loss(features(2), Targets.from_lists([[], [LABELS]]), "train")["loss"].isfinite()
