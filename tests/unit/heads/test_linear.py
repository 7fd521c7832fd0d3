"""The linear head."""

import pytest
import torch

from heads import Linear
from tests.support.documents import label_space, seeded, vector_features

SPACE = label_space([100, 40, 7, 0], unseen=["u"])


def features(size):
    return vector_features(torch.randn(size, 6, generator=seeded()))


@pytest.mark.parametrize("hidden", [None, 3])
def test_bias_starts_at_the_prior(hidden):
    head = Linear(6, SPACE, hidden=hidden)
    assert torch.allclose(head.classifier.bias.sigmoid(), SPACE.prior(), atol=1e-6)
    assert SPACE.prior().tolist() == pytest.approx([100.5 / 101, 40.5 / 101, 7.5 / 101, 0.5 / 101])


def test_one_linear_map():
    head = Linear(6, SPACE)
    pooled = features(5).pooled
    expected = pooled @ head.classifier.weight.T + head.classifier.bias
    assert torch.allclose(head(features(5)), expected, atol=1e-6)
    assert sum(p.numel() for p in head.parameters()) == 4 * (6 + 1)


def test_hidden_adds_a_projection():
    head = Linear(6, SPACE, hidden=3)
    pooled = features(5).pooled
    expected = head.classifier(pooled @ head.project.weight.T + head.project.bias)
    assert torch.allclose(head(features(5)), expected, atol=1e-6)
    assert head.classifier.in_features == 3
    assert sum(p.numel() for p in head.parameters()) == 3 * (6 + 1) + 4 * (3 + 1)
