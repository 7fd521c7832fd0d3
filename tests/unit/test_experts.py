"""ME-XML's losses against numbers computed by hand and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from datamodules.batch import LabelSpace, Targets
from heads.experts import bernoulli_kl
from tests.unit.experts import COUNTS, THREE, TRUTH, diverse, features, head, slow_logits


def slow_diversity(logits, counts, targets, pairs):
    """The diversity loss (to be minimised), mean over documents and ordered pairs of experts."""
    total = 0.0
    for j, k in pairs:
        for doc, label in zip(targets.rows.tolist(), targets.indices.tolist(), strict=True):
            p, q = (torch.sigmoid(logits[e, doc, label].double()).item() for e in (j, k))
            kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
            total -= (1 - max(p, q)) / counts[label] * kl
    return total / len(pairs) / len(targets)


# Divergence


def test_divergence_of_two_coins():
    half, quarter = torch.tensor(0.5).logit(), torch.tensor(0.25).logit()
    assert bernoulli_kl(half, quarter).item() == pytest.approx(0.143841, abs=1e-6)
    assert bernoulli_kl(quarter, quarter).item() == 0
    assert bernoulli_kl(torch.tensor(60.0), torch.tensor(-60.0)).item() == pytest.approx(60.0)


def test_gradients_of_the_divergence():
    a, b = torch.tensor(1.0, requires_grad=True), torch.tensor(-0.5, requires_grad=True)
    by_a, by_b = torch.autograd.grad(bernoulli_kl(a, b), (a, b))
    assert by_a.item() == pytest.approx(0.294918, abs=1e-6)
    assert by_b.item() == pytest.approx(-0.353518, abs=1e-6)


def reward(made, logits, labels):
    """What diversity rewards for one document with these labels, from logits (experts, labels)."""
    return made.divergences(logits, Targets.from_lists([labels]))["reward"]


def test_reward_of_one_label():
    made = head(THREE[1:], direction="forward")
    logits = torch.tensor([[0.5], [0.25]]).logit()
    assert -reward(made, logits, [6]).item() == pytest.approx(-0.017980, abs=1e-6)  # 4 documents: lambda is 0.125


def test_twice_as_many_documents_halve_the_reward():
    made = head(THREE[1:])
    logits = torch.tensor([[0.5], [0.25]]).logit()
    assert reward(made, logits, [6]).item() == pytest.approx(reward(made, logits, [7]).item() / 2)  # 4 against 2


def test_nothing_is_rewarded_where_an_expert_is_sure():
    assert reward(head(THREE[1:]), torch.tensor([[100.0], [-1.0]]), [8]).item() == 0


def test_the_weight_of_a_label_carries_no_gradient():
    made = head(THREE[1:], direction="forward")
    logits = torch.tensor([[1.0], [-0.5]], requires_grad=True)
    (grad,) = torch.autograd.grad(reward(made, logits, [6]), logits)
    weight = (1 - torch.tensor(1.0).sigmoid().item()) / 4
    assert grad.flatten().tolist() == pytest.approx([0.294918 * weight, -0.353518 * weight], abs=1e-6)


def test_a_cap_on_the_divergence():
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


def test_no_positive_labels_make_no_diversity():
    terms = diverse().loss(features(), Targets.from_lists([[], [], [9], []]), "any")
    assert terms["loss"].item() == terms["bce"].item()
    assert terms["loss"].isfinite()


def test_diversity_counts_only_after_its_transition():
    made, given = head(diversity=0.5), features()
    before = made.loss(given, TRUTH, "any")
    assert before["loss"].item() == before["bce"].item()
    assert made.pending == ("start_diversity",)
    made.start_diversity(None)
    after = made.loss(given, TRUTH, "any")
    assert after["bce"].item() == before["bce"].item()
    assert after["loss"].item() < after["bce"].item()
    assert made.pending == ()


@pytest.mark.parametrize("made", [head(diversity=0.0), head(THREE[2:])], ids=["weight 0", "one expert"])
def test_nothing_is_pending_without_diversity(made):
    assert made.pending == ()


def test_a_first_stage_has_no_diversity_though_its_weights_had():
    made, given = diverse(diversity=0.5), features()
    made.start_experts(None)
    terms = made.loss(given, TRUTH, "any")
    assert terms["loss"].item() == terms["bce"].item()


def test_biases_are_spared_by_weight_decay():
    """Which looks at the number of dimensions."""
    biases = {name: p.ndim for name, p in head().named_parameters() if name.endswith("bias")}
    assert len(biases) == 6
    assert set(biases.values()) == {1}


def test_a_checkpoint_keeps_that_diversity_has_begun():
    made = head()
    made.load_state_dict(diverse().state_dict())
    assert made.pending == ()


# Losses


@pytest.mark.parametrize("experts", [THREE[2:], THREE[:1], THREE[1:], THREE], ids=len)
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
    """Experts that say this of every label, whatever the document."""
    for expert, value in zip(made.experts.values(), values, strict=True):
        weight = getattr(expert, "weight", None)
        for tensor in (expert.last.weight if weight is None else weight, expert.bias):
            tensor.data.zero_()
        expert.bias.data += value
    return made


def test_individual_and_collaborative_losses_differ():
    space = LabelSpace(["a"], [3], num_documents=9, vocab_size=30)
    truth = Targets.from_lists([[0]] * 4)
    losses = {}
    for objective in ("individual", "collaborative"):
        made = with_logits(head(THREE[1:], space=space, objective=objective, diversity=0.0), 2.0, -2.0)
        losses[objective] = made.loss(features(), truth, "any")["loss"].item()
    assert losses == pytest.approx({"individual": 1.126928, "collaborative": 0.693147}, abs=1e-6)


def test_terms_name_each_expert():
    terms = head().loss(features(), TRUTH, "any")
    assert {"A1", "A2", "D-1", "bce", "loss", "kl/A1/D-1", "kl/D-1/A1"} <= set(terms)
    assert terms["bce"].item() == pytest.approx(sum(terms[name].item() for name in ("A1", "A2", "D-1")) / 3)


@pytest.mark.parametrize("objective", ["individual", "collaborative"])
def test_sampled_labels_are_right_on_average(objective):
    made, given = head(objective=objective, diversity=0.0), features()
    exact = made.loss(given, TRUTH, "any")["loss"].item()
    made.negatives = 2
    sampled = [made.loss(given, TRUTH, "any")["loss"].item() for _ in range(400)]
    assert sum(sampled) / 400 == pytest.approx(exact, rel=0.02)


def test_unused_labels_do_not_change_how_diversity_weighs_against_the_loss():
    """Both sum over labels: a hundred times as many labels leave the two gradients of a positive logit as they are."""
    ratios = []
    for size in (9, 900):
        space = LabelSpace([str(i) for i in range(size)], COUNTS[:9] + [1] * (size - 9), 80, vocab_size=30)
        made = diverse(THREE[1:], space=space)
        logits = torch.tensor([[0.3], [-0.4]], requires_grad=True)
        truth = Targets.from_lists([[8]])
        (by_reward,) = torch.autograd.grad(made.divergences(logits, truth)["reward"], logits)
        with_logits(made, 0.3, -0.4)
        terms = made.loss(features(), Targets.from_lists([[8]] * 4), "any")
        (by_bce,) = torch.autograd.grad(terms["bce"], made.experts["D-1"].bias)
        ratios.append((by_bce[8] / by_reward[1]).item())
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-4)


@pytest.mark.parametrize("objective", ["individual", "collaborative"])
def test_mixed_precision_is_near_single(objective):
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
