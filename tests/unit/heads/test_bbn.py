"""BBN: two samplers, two branches, and a weight that moves from one to the other."""

import pytest
import torch
import torch.nn.functional as F

from backbones.base import Features
from datamodules.batch import Batch, Targets
from heads import BBN, TransitionContext
from tests.support.documents import label_space

DIM, DOCUMENTS = 5, 40
SPACE = label_space([30, 10, 2, 1], DOCUMENTS)
TRUTH = [[0], [0, 1], [2], [3, 0], [1], [0, 2]]


def make(**kwargs):
    torch.manual_seed(0)
    return BBN(DIM, SPACE, hidden=4, **kwargs)


def given(rows, seed=0):
    pooled = torch.randn(len(rows), DIM, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(len(rows), 1, dtype=torch.bool)
    targets = Targets.from_lists(TRUTH[: len(rows)])
    batch = Batch(mask.long(), mask, targets, torch.tensor(rows))
    return Features(pooled[:, None], mask, pooled, (pooled[:, None],), batch=batch), targets


def slow_loss(head, x, rows, mix):
    even = [i for i, row in enumerate(rows) if row < DOCUMENTS] or list(range(len(rows)))
    rare = [i for i, row in enumerate(rows) if row >= DOCUMENTS] or list(range(len(rows)))
    if len(even) == len(rows) or len(rare) == len(rows):
        even = rare = list(range(len(rows)))
    total, size = 0.0, max(len(even), len(rare))
    for i in range(size):
        c, r = even[i % len(even)], rare[i % len(rare)]
        both = torch.cat([mix * head.even(x.pooled[c]), (1 - mix) * head.reversed(x.pooled[r])])
        logits = head.classifier(2 * both)
        for weight, document in ((mix, c), (1 - mix, r)):
            truth = torch.zeros(4)
            truth[TRUTH[document]] = 1
            total = total + weight * F.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    return total / size


@pytest.mark.parametrize("mix", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(
    "rows", [[0, 1, 2, 43, 44, 45], [0, 41, 2, 3, 4, 45], [70, 41, 2, 53, 54], [0, 1, 2], [41, 42], [-1]]
)
def test_loss_equals_a_loop(mix, rows):
    head, (x, targets) = make(), given(rows)
    head.mix.fill_(mix)
    terms = head.loss(x, targets, "main")
    assert torch.isclose(terms["loss"], slow_loss(head, x, rows, mix), atol=1e-5)
    terms["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_ranking_weighs_both_branches_equally():
    head, (x, _) = make(), given([0, 1, 2])
    expected = head.classifier(torch.cat([head.even(x.pooled), head.reversed(x.pooled)], dim=1))
    for mix in (1.0, 0.2):
        head.mix.fill_(mix)
        assert torch.allclose(head(x), expected)


def test_mix_falls_quadratically_with_the_epoch():
    head, found = make(epochs=4), []
    for epoch in range(6):
        head.set_mix(TransitionContext(epoch=epoch))
        found.append(head.mix.item())
    assert found == [1.0, 1 - 1 / 16, 0.75, 1 - 9 / 16, 0.0, 0.0]
    assert make(epochs=4).state_dict()["mix"] == 0.5


@pytest.mark.parametrize("weight", ["mean", "max"])
def test_half_of_the_documents_are_drawn_by_rarity(weight):
    truth = [[0]] * 20 + [[0, 1]] * 15 + [[2]] * 3 + [[0, 3]] * 2
    targets = Targets.from_lists(truth * 500)
    head = make(weight=weight)
    rows = head.both_samplers(targets, 0)
    size = len(targets)
    assert rows[:size].tolist() == list(range(size))
    drawn = rows[size:] - size
    assert drawn.min() >= 0
    assert drawn.max() < size
    counts = torch.tensor([30.0, 10, 2, 1])
    weights = torch.stack([getattr(1 / counts[torch.tensor(row)], weight)() for row in truth])
    share = torch.bincount(drawn % 40, minlength=40) / size
    expected = weights / weights.sum()
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / size) ** 0.5).all()
    assert torch.equal(rows, head.both_samplers(targets, 0))
    assert not torch.equal(rows, head.both_samplers(targets, 1))
