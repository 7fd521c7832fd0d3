"""Masked softmax and masked pooling against loops over real tokens."""

import pytest
import torch

from backbones.pooling import MaskedPool, masked_softmax
from tests.support.documents import length_mask, token_features


def test_masked_softmax_equals_softmax_over_real_tokens():
    torch.manual_seed(0)
    scores, mask = torch.randn(4, 6) * 5, length_mask([1, 3, 5, 6])
    weights = masked_softmax(scores, mask)
    for row, n in enumerate([1, 3, 5, 6]):
        assert torch.allclose(weights[row, :n], scores[row, :n].softmax(0), atol=1e-6)
    assert (weights[~mask] == 0).all()
    assert torch.allclose(weights.sum(1), torch.ones(4))


def test_rows_without_tokens_have_zero_weights():
    assert masked_softmax(torch.randn(2, 3), torch.zeros(2, 3).bool()).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("scale", [1e2, 1e6, 1e30])
def test_extreme_scores_give_finite_normal_weights(scale):
    scores = (torch.tensor([[1, -1, 0, 1], [-1, -1, -1, 1], [0.5, 1, -1, 1]]) * scale).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    weights = masked_softmax(scores, mask)
    assert weights.isfinite().all()
    assert (weights[~mask] == 0).all()
    assert (weights[mask] >= 1e-30).all()
    weights[:, 0].sum().backward()
    assert scores.grad.isfinite().all()
    assert torch.allclose(weights, torch.tensor([[1, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0, 0.5, 0, 0.5]]))


@pytest.mark.parametrize("kind", ["attention", "mean", "max"])
def test_pooling_equals_a_loop(kind):
    torch.manual_seed(0)
    pool, lengths = MaskedPool(6, kind), [1, 4, 9]
    features = token_features(lengths, dim=6)
    tokens, mask = -features.tokens.abs(), features.mask  # all negative: padding is larger
    pooled = pool(tokens, mask)
    for i, n in enumerate(lengths):
        real = tokens[i, :n]
        expected = {"mean": real.mean(0), "max": real.amax(0)}.get(kind)
        if expected is None:
            weights = torch.stack([x @ pool.score.weight[0] + pool.score.bias[0] for x in real]).softmax(0)
            expected = sum(w * x for w, x in zip(weights, real, strict=True))
        assert torch.allclose(pooled[i], expected, atol=1e-6)
