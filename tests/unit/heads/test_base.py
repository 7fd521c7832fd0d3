"""The loss and the ranking that all heads share."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from datamodules.batch import Targets
from heads import DenseHead
from heads.base import probabilities, top_labels
from heads.losses import bce
from tests.support.documents import label_space, seeded, vector_features

SPACE = label_space([100, 40, 7, 0], unseen=["u"])
TRUTH = [[0, 2], [], [1, 3, 4, 6], [5]]  # from 4 on never seen in training


class Given(DenseHead):
    """A head with given logits."""

    def __init__(self, logits):
        super().__init__(1, SPACE)
        self.logits = nn.Parameter(logits)

    def forward(self, features):
        return self.logits


def test_bce_equals_torch():
    """Summed over labels and averaged over documents."""
    logits, targets = (10 * torch.randn(4, 4, generator=seeded())).requires_grad_(), Targets.from_lists(TRUTH)
    dense = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).float()
    expected = F.binary_cross_entropy_with_logits(logits, dense, reduction="none").sum(1).mean()
    loss = bce(logits, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    grads = (torch.autograd.grad(each, logits)[0] for each in (loss, expected))
    torch.testing.assert_close(*grads, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_labels", [1, 4, 1000])
def test_bce_of_zero_logits(num_labels):
    loss = bce(torch.zeros(4, num_labels), Targets.from_lists(TRUTH))
    assert loss.item() == pytest.approx(num_labels * math.log(2), rel=1e-6)


def test_bce_of_extreme_logits_and_half_precision():
    targets = Targets.from_lists([[0], [1]])
    right = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    assert bce(right, targets).item() == 0
    assert bce(-right, targets).item() == pytest.approx(2e4)
    half = bce(torch.full((2, 3000), 20.0, dtype=torch.bfloat16), targets)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(20 * 2999, rel=1e-4)


def test_dense_heads_return_bce():
    head = Given(torch.zeros(4, 4))
    terms = head.loss(vector_features(torch.zeros(4, 6)), Targets.from_lists(TRUTH), "train")
    assert terms.keys() == {"loss"}
    terms["loss"].backward()
    assert (head.logits.grad != 0).all()


@given(
    scores=st.integers(1, 12).flatmap(
        lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    k=st.integers(1, 15),
)
@settings(deadline=None)
def test_ties_go_to_the_lower_label(scores, k):
    top = top_labels(torch.tensor(scores).float(), k)
    assert top.labels.shape == top.scores.shape == (len(scores), k)
    for row, labels, values in zip(scores, top.labels.tolist(), top.scores.tolist(), strict=True):
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        fill = k - len(best)
        assert labels == best + [-1] * fill
        assert values == [row[i] for i in best] + [0.0] * fill


def test_scores_of_dense_heads_are_probabilities():
    logits = torch.tensor([[0.0, 50.0, -1e4, 100.0], [-2.0, -1.0, 1e4, 0.0]])
    ranking = Given(logits).rank(vector_features(torch.zeros(2, 6)), 3)
    assert ranking.labels.tolist() == [[3, 1, 0], [2, 3, 1]]  # 50 and 100 both round to probability 1
    assert ranking.scores.tolist() == [pytest.approx(row) for row in [[1, 1, 0.5], [1, 0.5, 0.2689414]]]
    assert ((ranking.scores >= 0) & (ranking.scores <= 1)).all()


def test_probabilities_do_not_depend_on_the_shape():
    logits = 4 * torch.randn(61, 1003, generator=torch.Generator().manual_seed(0))
    whole = probabilities(logits)
    for width in (1, 7, 500, 977, 1002):
        assert torch.equal(probabilities(logits[:, :width].contiguous()), whole[:, :width])
    assert torch.allclose(whole, logits.sigmoid(), rtol=1e-6)


def test_missing_candidates_have_label_minus_1_and_score_0():
    ranking = Given(torch.tensor([[-1.0, 2.0, 0.0, 1.0]])).rank(vector_features(torch.zeros(1, 6)), 6)
    assert ranking.labels.tolist() == [[1, 3, 2, 0, -1, -1]]
    assert ranking.scores[0, 4:].tolist() == [0, 0]
