"""Ancestors of labels, and metrics over labels with their ancestors."""

import numpy as np
import pytest
import torch

import zoo
from datamodules import Targets
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.unit.training.test_tagger import TEXTS, make
from zoo.core.errors import UserError
from zoo.core.hierarchy import Hierarchy
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.tags import Tag, Tags, WithAncestors

PARENTS = [3, 1, 4, 1, 4, 2, 1, 0, 2, 0, 6, 5]  # 0 above 1 and 2, 1 above 3, both above 4; 5 above 6


def slow_closure(labels, parents):
    found = set(labels)
    while True:
        more = {p for c, p in zip(parents[::2], parents[1::2], strict=True) if c in found} - found
        if not more:
            return found
        found |= more


def test_ancestors_come_from_near_to_far():
    hierarchy = Hierarchy(PARENTS)
    assert [hierarchy.ancestors(label) for label in range(8)] == [(), (0,), (0,), (1, 0), (1, 2, 0), (), (5,), ()]
    assert hierarchy.closures(3).values.tolist() == [0, 1, 0, 2, 0]


def test_cycles_end_and_endless_ancestors_are_refused():
    hierarchy = Hierarchy([0, 1, 1, 2, 2, 0, 3, 3])
    assert [hierarchy.ancestors(label) for label in range(4)] == [(1, 2), (2, 0), (0, 1), ()]
    chain = [label + step for label in range(2000) for step in (0, 1)]
    with raises(UserError, "ancestors"):
        Hierarchy(chain).ancestors(0)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_hierarchical_metrics_against_sets(k):
    random = np.random.default_rng(0)
    truth = [random.choice(9, random.integers(0, 4), replace=False).tolist() for _ in range(30)]  # 8 is unseen
    found = np.stack([random.permutation(8)[:5] for _ in range(30)])
    found[random.random(found.shape) < 0.1] = -1
    metrics = RankingMetrics(label_space([9, 8, 7, 6, 5, 4, 3, 2], unseen=["x"], parents=PARENTS))
    for rows in np.array_split(np.arange(30), 4):
        labels = torch.from_numpy(np.stack([[*[x for x in found[i] if x >= 0], *[-1] * 5][:5] for i in rows]))
        metrics.update(torch.rand(labels.shape), labels, Targets.from_lists([truth[i] for i in rows]))
    shared = predicted = true = 0
    for row, labels in zip(truth, found, strict=True):
        if row:
            top = slow_closure([x for x in labels.tolist() if x >= 0][:k], PARENTS)
            own = slow_closure(row, PARENTS)
            shared, predicted, true = shared + len(top & own), predicted + len(top), true + len(own)
    values = metrics.compute()
    assert values[f"hP@{k}"] == pytest.approx(shared / predicted)
    assert values[f"hR@{k}"] == pytest.approx(shared / true)
    assert values[f"hF@{k}"] == pytest.approx(2 * shared / (predicted + true))


def test_labels_without_parents_have_no_hierarchical_metrics():
    assert not any(name.startswith("h") for name in RankingMetrics(label_space([2, 1])).compute())


def test_ancestors_get_the_best_score_of_their_descendants():
    space = label_space([7, 6, 5, 4, 3, 2, 1], parents=PARENTS)
    closed = WithAncestors(space)(Tags([Tag("l4", 0.9), Tag("l6", 0.5), Tag("l1", 0.4)], known=False))
    assert [(tag.label, tag.score) for tag in closed] == [
        ("l4", 0.9),
        ("l1", 0.9),
        ("l2", 0.9),
        ("l0", 0.9),
        ("l6", 0.5),
        ("l5", 0.5),
    ]
    assert not closed.known


def test_a_tagger_adds_ancestors():
    tagger = make()
    with raises(zoo.UserError, "ancestors", "label_texts"):
        tagger.tag(TEXTS, ancestors=True)
    tagger.module.space.parents = [3, 1, 1, 0]
    for before, after in zip(tagger.tag(TEXTS, k=2), tagger.tag(TEXTS, k=2, ancestors=True), strict=True):
        names = {int(tag.label[1:]) for tag in before}
        assert {int(tag.label[1:]) for tag in after} == slow_closure(names, [3, 1, 1, 0])
        assert [tag.score for tag in after] == sorted((tag.score for tag in after), reverse=True)
