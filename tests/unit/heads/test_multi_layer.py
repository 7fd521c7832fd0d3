"""ME-XML: losses, diversity and rankings against numbers computed by hand and plain loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from datamodules.batch import LabelSpace, Targets
from heads import Experts
from heads.experts.multi_layer import ExpertSettings, bernoulli_kl
from tests.support.errors import raises
from tests.support.experts import COUNTS, DIM, SPACE, THREE, TRUTH, diverse, features, head, slow_logits
from zoo.core.errors import UserError

TWO_LAYERS = ExpertSettings("cls", -1, (2,))


def slow_diversity(logits, counts, targets, pairs):
    """The diversity loss (to be minimised), mean over documents and ordered pairs of experts."""
    total = 0.0
    for j, k in pairs:
        for doc, label in zip(targets.rows.tolist(), targets.indices.tolist(), strict=True):
            p, q = (torch.sigmoid(logits[e, doc, label].double()).item() for e in (j, k))
            kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
            total -= (1 - max(p, q)) / counts[label] * kl
    return total / len(pairs) / len(targets)


def test_divergence_by_hand():
    half, quarter = torch.tensor(0.5).logit(), torch.tensor(0.25).logit()
    assert bernoulli_kl(half, quarter).item() == pytest.approx(0.143841, abs=1e-6)
    assert bernoulli_kl(quarter, quarter).item() == 0
    assert bernoulli_kl(torch.tensor(60.0), torch.tensor(-60.0)).item() == pytest.approx(60.0)


def reward(made, logits, labels):
    """Diversity reward of one document with these labels and logits (experts, labels)."""
    return made.divergences(logits, Targets.from_lists([labels]))["reward"]


def test_reward_of_one_label_by_hand():
    made = head(THREE[1:], direction="forward")
    logits = torch.tensor([[0.5], [0.25]]).logit()
    assert -reward(made, logits, [6]).item() == pytest.approx(-0.017980, abs=1e-6)  # 4 documents: lambda is 0.125


def test_the_weight_of_a_label_has_no_gradient():
    made = head(THREE[1:], direction="forward")
    logits = torch.tensor([[1.0], [-0.5]], requires_grad=True)
    (grad,) = torch.autograd.grad(reward(made, logits, [6]), logits)
    weight = (1 - torch.tensor(1.0).sigmoid().item()) / 4
    assert grad.flatten().tolist() == pytest.approx([0.294918 * weight, -0.353518 * weight], abs=1e-6)


def test_max_kl_caps_the_divergence():
    logits = torch.tensor([[-2.0], [-30.0]])
    capped = reward(head(THREE[1:], max_kl=0.5, direction="forward"), logits, [6]).item()
    assert capped == pytest.approx(0.5 * (1 - torch.tensor(-2.0).sigmoid().item()) / 4, abs=1e-6)


@pytest.mark.parametrize("experts", [THREE[2:], THREE[1:], THREE], ids=len)
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_diversity_equals_a_loop(experts, direction):
    made, given = diverse(experts, diversity=0.3, direction=direction), features()
    terms = made.loss(given, TRUTH, "any")
    logits, known = slow_logits(made, given), TRUTH.below(9)
    size = len(experts)
    chosen = {"forward": lambda j, k: j < k, "backward": lambda j, k: j > k, "both": lambda j, k: j != k}[direction]
    pairs = [(j, k) for j in range(size) for k in range(size) if chosen(j, k)]
    expected = slow_diversity(logits, COUNTS, known, pairs) if pairs else 0.0
    assert (terms["loss"] - terms["bce"]).item() == pytest.approx(0.3 * expected, abs=1e-6)
    for j, k in pairs:
        kl = [bernoulli_kl(*logits[[j, k], d, i]).item() for d, i in zip(known.rows, known.indices, strict=True)]
        logged = terms[f"kl/{made.parts[j]}/{made.parts[k]}"].item()
        assert logged == pytest.approx(sum(kl) / len(kl), abs=1e-6)


def test_no_diversity_without_positive_labels():
    terms = diverse().loss(features(), Targets.from_lists([[], [], [9], []]), "any")
    assert terms["loss"].item() == terms["bce"].item()
    assert terms["loss"].isfinite()


def test_diversity_starts_with_its_transition():
    made, given = head(diversity=0.5), features()
    before = made.loss(given, TRUTH, "any")
    assert before["loss"].item() == before["bce"].item()
    assert made.pending == ("start_diversity",)
    made.start_diversity(None)
    after = made.loss(given, TRUTH, "any")
    assert after["bce"].item() == before["bce"].item()
    assert after["loss"].item() < after["bce"].item()
    assert made.pending == ()


def test_start_experts_turns_diversity_off():
    made, given = diverse(diversity=0.5), features()
    made.start_experts(None)
    terms = made.loss(given, TRUTH, "any")
    assert terms["loss"].item() == terms["bce"].item()


def test_biases_are_vectors_and_so_exempt_from_weight_decay():
    """Weight decay is exempt by number of dimensions."""
    biases = {name: p.ndim for name, p in head().named_parameters() if name.endswith("bias")}
    assert len(biases) == 6
    assert set(biases.values()) == {1}


def test_checkpoints_keep_the_progress():
    made = head()
    made.load_state_dict(diverse().state_dict())
    assert made.pending == ()


@pytest.mark.parametrize("experts", [THREE[2:], THREE[:1], THREE[1:], THREE, [TWO_LAYERS, THREE[0]]])
@pytest.mark.parametrize("label_bias", [True, False])
@pytest.mark.parametrize("objective", ["individual", "collaborative"])
def test_losses_equal_a_loop(experts, label_bias, objective):
    made, given = head(experts, objective=objective, label_bias=label_bias, diversity=0.0), features()
    logits, truth = slow_logits(made, given), TRUTH.dense(9)
    if objective == "collaborative":
        logits = logits.mean(0, keepdim=True)
    each = [F.binary_cross_entropy_with_logits(one, truth, reduction="sum") / 4 for one in logits]
    slow = torch.stack(each).mean()
    loss = made.loss(given, TRUTH, "any")["loss"]
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    variables = [*made.parameters(), *given.layers]
    fast_grads, slow_grads = (torch.autograd.grad(x, variables, allow_unused=True) for x in (loss, slow))
    for fast, expected in zip(fast_grads, slow_grads, strict=True):
        if expected is not None:
            torch.testing.assert_close(fast, expected, atol=1e-5, rtol=1e-4)


def with_logits(made, *values):
    """Give the experts constant logits."""
    for expert, value in zip(made.experts.values(), values, strict=True):
        weight = getattr(expert, "weight", None)
        for tensor in (expert.last.weight if weight is None else weight, expert.bias):
            tensor.data.zero_()
        expert.bias.data += value
    return made


def test_individual_and_collaborative_losses_by_hand():
    space = LabelSpace(["a"], [3], num_documents=9, vocab_size=30)
    truth = Targets.from_lists([[0]] * 4)
    losses = {}
    for objective in ("individual", "collaborative"):
        made = with_logits(head(THREE[1:], space=space, objective=objective, diversity=0.0), 2.0, -2.0)
        losses[objective] = made.loss(features(), truth, "any")["loss"].item()
    assert losses == pytest.approx({"individual": 1.126928, "collaborative": 0.693147}, abs=1e-6)


@pytest.mark.parametrize("objective", ["individual", "collaborative"])
def test_sampled_loss_is_unbiased(objective):
    made, given = head(objective=objective, diversity=0.0), features()
    exact = made.loss(given, TRUTH, "any")["loss"].item()
    made.negatives = 2
    sampled = [made.loss(given, TRUTH, "any")["loss"].item() for _ in range(150)]
    assert sum(sampled) / 150 == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("objective", ["individual", "collaborative"])
def test_mixed_precision_is_near_single_precision(objective):
    made, given = diverse(objective=objective), features()
    exact = made.loss(given, TRUTH, "any")["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rough = made.loss(given, TRUTH, "any")["loss"]
        scores = made.rankings(given, 3)[""].scores
    assert rough.item() == pytest.approx(exact.item(), rel=0.02)
    assert (rough.dtype, scores.dtype) == (torch.float32, torch.float32)
    assert torch.equal(scores, made.rankings(given, 3)[""].scores)  # rankings are in single precision all the same
    gradients = [torch.autograd.grad(loss, made.experts["A1"].query)[0] for loss in (exact, rough)]
    torch.testing.assert_close(*gradients, atol=0.02, rtol=0.1)


@torch.no_grad()
def test_rankings_of_the_mean_and_of_each_expert():
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


def test_an_expert_trains_nothing_above_its_layer():
    given = features()
    head(THREE[:1]).loss(given, TRUTH, "any")["loss"].backward()
    assert given.layers[0].grad.abs().sum() > 0
    assert given.layers[1].grad is None
    assert given.layers[2].grad is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"experts": []}, ["experts"]),
        ({"experts": [THREE[0], THREE[0]]}, ["experts"]),
        ({"experts": [ExpertSettings("label_attention", 1, (2,))]}, ["further_layers", "kind=cls"]),
        ({"diversity": -1.0}, ["`diversity=-1.0`"]),
        ({"max_kl": -1.0}, ["`max_kl=-1.0`"]),
        ({"hidden": 0}, ["`hidden=0`"]),
    ],
)
def test_invalid_settings_are_rejected(settings, names):
    with raises(UserError, *names):
        Experts(DIM, SPACE, **settings)


def test_requirements_on_the_backbone():
    assert (head().needs_tokens, head().needs_layers) == (True, 2)
    assert (head(THREE[2:]).needs_tokens, head(THREE[2:]).needs_layers) == (False, 1)
    assert (head([TWO_LAYERS]).needs_layers, head([TWO_LAYERS]).parts) == (2, ("D-1+2",))
