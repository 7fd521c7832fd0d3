"""Blockwise loss and logits: the same values as without blocks, in the memory of one block."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from datamodules.batch import Targets
from heads import LabelwiseHead
from heads.attention.label_attention import attend, sample_labels
from heads.losses import bce
from tests.support.documents import label_space, token_features
from tests.support.errors import raises
from zoo.core.errors import UserError

LENGTHS = [9, 9, 3, 1, 6, 9]
TRUTH = [[0, 4], [], [2, 10, 13, 20], [4], [7], [12]]  # from 13 on never seen in training
LABELS, DIM, HIDDEN = 13, 4, 3
blocks = pytest.mark.parametrize(("chunk", "block"), [(1, 1), (4, 80), (5, 10**6), (100, 120)])


class Toy(LabelwiseHead):
    """Shared and per-label parameters before and after attention."""

    def __init__(self, num_labels=LABELS, dim=DIM, **kwargs):
        super().__init__(dim, label_space([1] * num_labels, 9), **kwargs)
        torch.manual_seed(1)
        self.query = nn.Parameter(2 * torch.randn(num_labels, dim))
        self.bias = nn.Parameter(torch.randn(num_labels, 1))
        self.before, self.after = nn.Linear(dim, HIDDEN), nn.Linear(HIDDEN, 1)

    def per_token(self, features):
        return features.tokens, self.before(features.tokens)

    def per_label(self):
        return self.query, self.bias

    def score(self, tokens, mask, labels):
        attended = attend(labels[0], tokens[0], tokens[1], mask)
        return (self.after(attended.relu()) + labels[1]).squeeze(-1)

    def whole(self, features):
        """All logits at once."""
        return self.score(self.per_token(features), features.mask, self.per_label())


def features(lengths=LENGTHS, dim=DIM):
    return token_features(lengths, dim)


def set_blocks(monkeypatch, chunk, block):
    monkeypatch.setattr("heads.attention.blockwise.CHUNK", chunk)
    monkeypatch.setattr("heads.attention.blockwise.BLOCK", {"cpu": block})


def gradients(loss, head, given):
    tensors = {"tokens": given.tokens, **{n: p for n, p in head.named_parameters() if p.requires_grad}}
    return dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True))


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, other[name], **tolerance), name


@blocks
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_loss_and_gradients_do_not_depend_on_blocks(monkeypatch, chunk, block, factor):
    head, given, targets = Toy(), features(), Targets.from_lists(TRUTH)
    expected = factor * bce(head.whole(given), targets)
    set_blocks(monkeypatch, chunk, block)
    terms = head.loss(given, targets, "train")
    assert terms.keys() == {"loss"}
    got = factor * terms["loss"]
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same(gradients(got, head, given), gradients(expected, head, given), atol=1e-5)


@blocks
def test_logits_and_gradients_do_not_depend_on_blocks(monkeypatch, chunk, block):
    head, given, targets = Toy(), features(), Targets.from_lists(TRUTH)
    expected = head.whole(given)
    set_blocks(monkeypatch, chunk, block)
    got = head(given)
    assert torch.allclose(got, expected, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(head(given), expected, atol=1e-6)
    got, expected = (gradients(bce(logits, targets), head, given) for logits in (got, expected))
    assert_same(got, expected, atol=1e-5)


@pytest.mark.parametrize("truth", [[[]] * 6, [[13]] * 6], ids=["none", "unseen"])
def test_batches_without_known_labels(truth):
    head, given = Toy(), features()
    expected = bce(head.whole(given), Targets.from_lists([[]] * 6))
    assert head.loss(given, Targets.from_lists(truth), "train")["loss"].item() == pytest.approx(expected.item())


def test_no_gradients_are_computed_without_grad_mode(monkeypatch):
    head, given, targets = Toy(), features(), Targets.from_lists(TRUTH)
    expected = head.loss(given, targets, "train")["loss"].item()
    monkeypatch.setattr(torch.autograd, "grad", None)
    with torch.no_grad():
        loss = head.loss(given, targets, "train")["loss"]
    assert not loss.requires_grad
    assert loss.item() == expected


@pytest.mark.parametrize("frozen", ["query", "before", "tokens", "query bias after tokens"])
def test_frozen_parameters_get_no_gradient(monkeypatch, frozen):
    set_blocks(monkeypatch, 4, 80)
    head, given, targets = Toy(), features(), Targets.from_lists(TRUTH)
    every = gradients(head.loss(given, targets, "train")["loss"], head, given)
    for name in frozen.split():
        part = given.tokens if name == "tokens" else getattr(head, name)
        part.requires_grad_(False)
    with Recorded() as made:
        head.loss(given, targets, "train")["loss"].backward()
    left = {"tokens": given.tokens.grad, **{name: p.grad for name, p in head.named_parameters()}}
    assert {name for name, grad in left.items() if grad is None} == {
        name for name in left if name.split(".")[0] in frozen.split()
    }
    assert_same({n: g for n, g in left.items() if g is not None}, {n: every[n] for n in left if left[n] is not None})
    if "query" in frozen:
        assert (LABELS, DIM) not in made.shapes


def test_loss_of_a_frozen_head_has_no_graph():
    head, given = Toy().requires_grad_(False), features()
    given.tokens.requires_grad_(False)
    assert not head.loss(given, Targets.from_lists(TRUTH), "train")["loss"].requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_near_single_precision(dtype):
    head, given, targets = Toy(), features(), Targets.from_lists(TRUTH)
    expected = head.loss(given, targets, "train")["loss"]
    of_all = gradients(expected, head, given)
    with torch.autocast("cpu", dtype=dtype):
        got = head.loss(given, targets, "train")["loss"]
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(expected.item(), rel=0.02)
    of_got = gradients(got, head, given)
    assert all(grad.dtype == torch.float32 for grad in of_got.values())
    assert_same(of_got, of_all, rtol=0.05, atol=0.05)


class Recorded(TorchDispatchMode):
    """Records the shape of every tensor that is created."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
        return out

    def largest(self):
        return max(torch.Size(shape).numel() for shape in self.shapes)


@pytest.mark.parametrize(("length", "dim", "block"), [(2, 8, 200), (40, 2, 800)], ids=["wide", "long"])
def test_loss_needs_the_memory_of_one_block(monkeypatch, length, dim, block):
    set_blocks(monkeypatch, 8, block)
    for num_labels in (50, 400):
        head, given = Toy(num_labels, dim), features([length] * 6, dim)
        with Recorded() as made:
            head.loss(given, Targets.from_lists(TRUTH), "train")["loss"].backward()
        made.shapes -= {tuple(tensor.shape) for tensor in head.per_label()}  # and their gradients: there anyway
        assert block / 2 < made.largest() <= block


def test_logits_need_little_more_than_their_own_memory(monkeypatch):
    set_blocks(monkeypatch, 8, 640)
    head, given = Toy(400), features([40] * 6)
    with Recorded() as made:
        bce(head(given), Targets.from_lists(TRUTH)).backward()
    assert made.largest() == 6 * 400


@pytest.mark.parametrize("negatives", [1, 4, 100])
def test_samples_hold_all_positive_labels(negatives):
    positive = torch.tensor([3, 11, 3, 5])
    chosen, weight = sample_labels(positive, 20, negatives)
    drawn = min(negatives, 17)
    assert len(chosen) == len(weight) == len(chosen.unique()) == 3 + drawn
    assert ((chosen >= 0) & (chosen < 20)).all()
    is_positive = torch.isin(chosen, positive)
    assert is_positive.sum() == 3
    assert weight[is_positive].tolist() == [1.0] * 3
    assert weight[~is_positive].tolist() == pytest.approx([17 / drawn] * drawn)
    assert weight.sum().item() == pytest.approx(20)


def test_samples_without_negatives_or_positives():
    chosen, weight = sample_labels(torch.arange(5), 5, 3)
    assert (chosen.tolist(), weight.tolist()) == ([0, 1, 2, 3, 4], [1.0] * 5)
    chosen, weight = sample_labels(torch.tensor([], dtype=torch.long), 5, 2)
    assert (len(chosen), weight.tolist()) == (2, [2.5, 2.5])


@blocks
def test_a_sample_of_all_labels_gives_the_exact_loss(monkeypatch, chunk, block):
    given, targets, whole, sampled = features(), Targets.from_lists(TRUTH), Toy(), Toy(negatives=LABELS)
    expected = whole.loss(given, targets, "train")["loss"]
    set_blocks(monkeypatch, chunk, block)
    got = sampled.loss(given, targets, "train")["loss"]
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same(gradients(got, sampled, given), gradients(expected, whole, given), atol=1e-5)


def test_sampled_loss_is_unbiased():
    given, targets, whole, sampled = features(), Targets.from_lists(TRUTH), Toy(), Toy(negatives=3)

    def flat(head):
        loss = head.loss(given, targets, "train")["loss"]
        return torch.cat([loss.detach().view(1), *(g.flatten() for g in gradients(loss, head, given).values())])

    expected, draws = flat(whole), []
    for seed in range(300):
        torch.manual_seed(seed)
        draws.append(flat(sampled))
    draws = torch.stack(draws)
    error = draws.std(0) / len(draws) ** 0.5
    assert error[0] < 0.03 * expected[0]
    assert error.max() < 0.07 * expected[1:].abs().max()
    assert ((draws.mean(0) - expected).abs() <= 4.5 * error + 1e-5).all()


@pytest.mark.parametrize("negatives", [0, -1])
def test_negatives_must_be_positive(negatives):
    with raises(UserError, f"`negatives={negatives}`"):
        Toy(negatives=negatives)
