"""Dropout with cheap random bits, against torch's own."""

import pytest
import torch
from torch import nn

from backbones.dropout import Dropout, random_bits

SIZE = 400_003  # not a multiple of the values in a draw


def dropped(rate, seed=0, size=SIZE):
    layer = Dropout(rate)
    torch.manual_seed(seed)
    return layer(torch.ones(size))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_rate_and_scale(rate):
    x = dropped(rate)
    kept = x != 0
    assert kept.double().mean() == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / SIZE) ** 0.5)
    assert x[kept].unique().tolist() == pytest.approx([1 / (1 - rate)], rel=1e-4)


def test_neighbours_are_independent():
    kept = (dropped(0.5) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs(4 * (kept[distance:] * kept[:-distance]).mean()) < 5 / SIZE**0.5


def test_every_bit_is_uniform():
    bits = random_bits(torch.Size([4, 50_000]))
    for place in range(16):
        assert ((bits >> place) & 1).double().mean(1).tolist() == pytest.approx([0.5] * 4, abs=0.0115)


def test_seed_repeats_the_mask():
    assert torch.equal(dropped(0.5, 3), dropped(0.5, 3))
    assert not torch.equal(dropped(0.5, 3), dropped(0.5, 4))


def test_gradient_is_that_of_the_mask():
    x = torch.randn(7, 5, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y != 0, 2.0, 0.0))


def test_edge_rates_and_evaluation_are_those_of_torch():
    x = torch.randn(100)
    for rate in (0.0, 1.0, 1e-9):
        assert torch.equal(Dropout(rate)(x), nn.Dropout(round(rate, 6))(x))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)
    assert Dropout(0.5)(x.bfloat16()).dtype == torch.bfloat16
