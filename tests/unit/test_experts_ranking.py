"""What ME-XML's experts rank, alone and together, and what they can be told."""

from __future__ import annotations

import pytest
import torch

from datamodules.errors import UserError
from heads import Experts
from heads.experts import ExpertSettings, mean_of_sigmoids
from tests.unit.experts import DIM, LENGTHS, SPACE, THREE, TRUTH, features, head, slow_logits

# Rankings


def test_the_mean_is_of_probabilities():
    logits = torch.tensor([[2.0], [0.0]])
    assert mean_of_sigmoids(logits).sigmoid().item() == pytest.approx(0.690399, abs=1e-6)
    sure = mean_of_sigmoids(torch.tensor([[40.0, 50.0], [30.0, 31.0]]))
    assert sure[1] > sure[0]  # though both probabilities round to 1


@torch.no_grad()
def test_rankings_of_all_and_of_each():
    made, given = head().eval(), features()
    logits = slow_logits(made, given)
    rankings = made.rankings(given, 4)
    assert list(rankings) == ["", "A1", "A2", "D-1"]
    for ranking, scores in zip(rankings.values(), [logits.sigmoid().mean(0), *logits.sigmoid()], strict=True):
        best = scores.topk(4)
        assert torch.equal(ranking.labels, best.indices)
        torch.testing.assert_close(ranking.scores, best.values)
    own = made.rank(given, 4)
    assert torch.equal(own.labels, rankings[""].labels)
    torch.testing.assert_close(own.scores, rankings[""].scores)


@torch.no_grad()
def test_padding_does_not_matter():
    made = head().eval()
    plain, padded = made.rankings(features(), 9), made.rankings(features(extra=5), 9)
    for name in plain:
        torch.testing.assert_close(plain[name].scores, padded[name].scores)


@torch.no_grad()
def test_a_query_of_zeros_takes_the_mean_of_the_tokens():
    made, given = head(THREE[:1]).eval(), features()
    expert = made.experts["A1"]
    expert.query.zero_()
    means = torch.stack([given.states(1)[doc, :length].mean(0) for doc, length in enumerate(LENGTHS)])
    expected = expert.last(expert.first(means).relu()) + expert.bias
    torch.testing.assert_close(made(given), expected)


@torch.no_grad()
def test_experts_do_not_touch_each_other():
    made, given = head().eval(), features()
    before = made.rankings(given, 9)["D-1"].scores
    for parameter in made.experts["A1"].parameters():
        parameter.normal_()
    assert torch.equal(made.rankings(given, 9)["D-1"].scores, before)


def test_an_early_expert_trains_nothing_above_its_layer():
    given = features()
    head(THREE[:1]).loss(given, TRUTH, "any")["loss"].backward()
    assert given.layers[0].grad.abs().sum() > 0
    assert given.layers[1].grad is None
    assert given.layers[2].grad is None


# Settings


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"experts": []}, "at least one"),
        ({"experts": [THREE[0], THREE[0]]}, "no two alike"),
        ({"experts": [ExpertSettings("cls", 0)]}, "layer 0"),
        ({"diversity": -1.0}, "diversity"),
        ({"max_kl": -1.0}, "max_kl"),
        ({"hidden": 0}, "hidden"),
    ],
)
def test_what_cannot_be_is_refused(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        Experts(DIM, SPACE, **settings)


def test_what_it_needs_of_a_backbone():
    assert (head().needs_tokens, head().needs_layers) == (True, 2)
    assert (head(THREE[2:]).needs_tokens, head(THREE[2:]).needs_layers) == (False, 1)


def test_two_experts_by_default_on_any_backbone():
    assert Experts(DIM, SPACE).parts == ("A1", "D-1")
