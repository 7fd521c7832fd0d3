"""The regularizer of GLaS against its equation with dense matrices."""

import pytest
import torch

from datamodules.batch import Targets
from heads import EXAM, LSAN, AttentionXML, GLaS, Linear, TransitionContext
from heads.tree import PLT
from tests.support.documents import label_space, token_features
from tests.support.errors import raises
from tests.support.tensors import LargestTensor
from zoo.core.errors import UserError

SPACE = label_space([9, 8, 3, 1, 1], 20)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]
TRAIN = [[0, 1], [0, 1, 2], [0], [2, 3]]  # label 4 has no documents


def made(inner=Linear, space=SPACE, **settings):
    torch.manual_seed(0)
    head = GLaS(DIM, space, inner, **settings)
    head.count_labels(TransitionContext(targets=Targets.from_lists(TRAIN)))
    return head


def target(num_labels):
    both = torch.zeros(num_labels, num_labels)
    for row in TRAIN:
        for i in row:
            for j in row:
                both[i, j] += 1
    inverse = torch.diag(1 / both.diagonal().clamp_min(1))
    return ((both @ inverse + inverse @ both) / 2).fill_diagonal_(1)


@pytest.mark.parametrize("inner", [Linear, AttentionXML, LSAN, EXAM], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("normalize", [True, False], ids=["cosine", "product"])
def test_the_loss_and_its_gradient_equal_the_equation(inner, normalize):
    head, given, targets = (
        made(inner, normalize=normalize, weight=0.7),
        token_features(LENGTHS, DIM),
        Targets.from_lists(TRUTH),
    )
    vectors = head.inner.label_vectors()
    unit = vectors / vectors.norm(dim=1, keepdim=True) if normalize else vectors
    penalty = (unit @ unit.T - target(SPACE.num_labels)).square().sum() / SPACE.num_labels
    expected = head.inner.loss(given, targets, "train")["loss"] + 0.7 * penalty
    terms = head.loss(given, targets, "train")
    assert terms["glas"].item() == pytest.approx(penalty.item(), rel=1e-4)
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    one, other = (torch.autograd.grad(loss, vectors)[0] for loss in (terms["loss"], expected))
    assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_nothing_has_the_size_labels_by_labels():
    head = made(space=label_space([1] * 2000, 20))
    with LargestTensor() as largest:
        head.penalty().backward()
    assert largest.numel <= 2000 * 64


def test_it_ranks_as_the_inner_head():
    head, given = made(), token_features(LENGTHS, DIM)
    assert torch.equal(head.rank(given, 3).labels, head.inner.rank(given, 3).labels)
    assert head.weight_norms().equal(head.inner.weight_norms())


def test_training_pulls_labels_that_occur_together_and_spreads_others():
    head = made()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        head.penalty().backward()
        optimizer.step()
    unit = torch.nn.functional.normalize(head.label_vectors(), dim=1)
    assert (unit @ unit.T)[0, 1] > 0.5
    assert abs((unit @ unit.T)[0, 4]) < 0.1


def test_heads_without_label_vectors_are_refused():
    with raises(UserError, "GLaS needs a head with one vector per label, and PLT has none"):
        GLaS(DIM, SPACE, PLT)


def test_labels_are_counted_once():
    assert GLaS(DIM, SPACE, Linear).pending == ("count_labels",)
    assert not made().pending
