"""The loss and the ranking that every head shares, and the plainest head."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import DenseHead, Linear
from heads.base import bce, probabilities, top_labels

SPACE = LabelSpace(["a", "b", "c", "d"], [100, 40, 7, 0], 100, vocab_size=9, unseen=["u"])
TRUTH = [[0, 2], [], [1, 3, 4, 6], [5]]  # from 4 on never seen in training


def features(size, dim=6):
    pooled = torch.randn(size, dim, generator=torch.Generator().manual_seed(0))
    tokens = pooled.unsqueeze(1)
    return Features(tokens, torch.ones(size, 1).bool(), pooled, (tokens,))


class Given(DenseHead):
    """Logits as they are given."""

    def __init__(self, logits):
        super().__init__(1, SPACE)
        self.logits = nn.Parameter(logits)

    def forward(self, features):
        return self.logits


# --- loss


def test_bce_equals_torch_summed_over_labels_and_averaged_over_documents():
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 4) * 10, Targets.from_lists(TRUTH)
    dense = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).float()
    expected = F.binary_cross_entropy_with_logits(logits, dense, reduction="none").sum(1).mean()
    assert bce(logits, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_gradient_of_bce_equals_torch_s():
    torch.manual_seed(0)
    ours = torch.randn(4, 4, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    targets = Targets.from_lists(TRUTH)
    bce(ours, targets).backward()
    (F.binary_cross_entropy_with_logits(theirs, targets.dense(4), reduction="sum") / 4).backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-7)


@pytest.mark.parametrize("num_labels", [1, 4, 1000])
def test_bce_of_a_head_that_knows_nothing(num_labels):
    loss = bce(torch.zeros(4, num_labels), Targets.from_lists(TRUTH))
    assert loss.item() == pytest.approx(num_labels * math.log(2), rel=1e-6)


def test_bce_stays_finite_at_extreme_logits_and_in_half_precision():
    targets = Targets.from_lists([[0], [1]])
    right = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    assert bce(right, targets).item() == 0
    assert bce(-right, targets).item() == pytest.approx(2e4)
    half = bce(torch.full((2, 3000), 20.0, dtype=torch.bfloat16), targets)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(20 * 2999, rel=1e-4)


def test_dense_heads_report_bce_as_the_loss():
    head = Given(torch.zeros(4, 4))
    terms = head.loss(features(4), Targets.from_lists(TRUTH), "train")
    assert terms.keys() == {"loss"}
    terms["loss"].backward()
    assert (head.logits.grad != 0).all()


# --- ranking


@given(
    scores=st.integers(1, 12).flatmap(
        lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    k=st.integers(1, 15),
)
@settings(deadline=None)
def test_top_labels_are_sorted_and_equal_scores_go_to_the_lower_label(scores, k):
    top = top_labels(torch.tensor(scores).float(), k)
    assert top.labels.shape == top.scores.shape == (len(scores), k)
    for row, labels, values in zip(scores, top.labels.tolist(), top.scores.tolist(), strict=True):
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        fill = k - len(best)
        assert labels == best + [-1] * fill
        assert values == [row[i] for i in best] + [0.0] * fill


def test_a_longer_ranking_begins_with_the_shorter_one():
    scores = torch.randint(0, 3, (5, 200), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(top_labels(scores, 100).labels[:, :5], top_labels(scores, 5).labels)


def test_scores_of_a_dense_head_are_probabilities():
    logits = torch.tensor([[0.0, 50.0, -1e4, 100.0], [-2.0, -1.0, 1e4, 0.0]])
    ranking = Given(logits).rank(features(2), 3)
    assert ranking.labels.tolist() == [[3, 1, 0], [2, 3, 1]]  # 50 and 100 both round to probability 1
    assert ranking.scores.tolist() == [pytest.approx(row) for row in [[1, 1, 0.5], [1, 0.5, 0.2689414]]]
    assert ((ranking.scores >= 0) & (ranking.scores <= 1)).all()


def test_a_probability_does_not_depend_on_the_place_of_its_logit():
    logits = 4 * torch.randn(61, 1003, generator=torch.Generator().manual_seed(0))
    whole = probabilities(logits)
    for width in (1, 7, 500, 977, 1002):
        assert torch.equal(probabilities(logits[:, :width].contiguous()), whole[:, :width])
    assert torch.allclose(whole, logits.sigmoid(), rtol=1e-6)


def test_missing_candidates_have_label_minus_1_and_score_0():
    ranking = Given(torch.tensor([[-1.0, 2.0, 0.0, 1.0]])).rank(features(1), 6)
    assert ranking.labels.tolist() == [[1, 3, 2, 0, -1, -1]]
    assert ranking.scores[0, 4:].tolist() == [0, 0]


def test_ranking_in_half_precision_gives_single_precision_scores():
    assert Given(torch.randn(2, 4).bfloat16()).rank(features(2), 2).scores.dtype == torch.float32


# --- Linear


@pytest.mark.parametrize("hidden", [None, 3])
def test_linear_begins_at_the_prior(hidden):
    head = Linear(6, SPACE, hidden=hidden)
    assert torch.allclose(head.classifier.bias.sigmoid(), SPACE.prior(), atol=1e-6)
    assert SPACE.prior().tolist() == pytest.approx([100.5 / 101, 40.5 / 101, 7.5 / 101, 0.5 / 101])


def test_linear_is_one_linear_map():
    head = Linear(6, SPACE)
    pooled = features(5).pooled
    expected = pooled @ head.classifier.weight.T + head.classifier.bias
    assert torch.allclose(head(features(5)), expected, atol=1e-6)
    assert sum(p.numel() for p in head.parameters()) == 4 * (6 + 1)


def test_hidden_puts_a_narrower_map_before_it():
    head = Linear(6, SPACE, hidden=3)
    pooled = features(5).pooled
    expected = head.classifier(pooled @ head.project.weight.T + head.project.bias)
    assert torch.allclose(head(features(5)), expected, atol=1e-6)
    assert head.classifier.in_features == 3
    assert sum(p.numel() for p in head.parameters()) == 3 * (6 + 1) + 4 * (3 + 1)


def test_dropout_of_linear_is_active_in_training_only():
    head = Linear(6, SPACE, dropout=0.5)
    head.train()
    assert not torch.equal(head(features(5)), head(features(5)))
    head.eval()
    assert torch.equal(head(features(5)), head(features(5)))
