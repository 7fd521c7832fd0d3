"""EXAM against its equations, one document and one label at a time."""

import pytest
import torch

from datamodules.batch import Targets
from heads import EXAM
from heads.losses import bce
from tests.support.documents import label_space, token_features

SPACE = label_space([9, 8, 3, 1, 1], 20)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]


def features(noise=False):
    return token_features(LENGTHS, DIM, noise=noise)


def made(length):
    torch.manual_seed(0)
    head = EXAM(DIM, SPACE, length=length, hidden=4)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def slow(head, given):
    rows = []
    for tokens, size in zip(given.tokens, LENGTHS, strict=True):
        for label in head.embedding:
            similar = [tokens[t] @ label if t < size else tokens.new_zeros(()) for t in range(head.length)]
            rows.append(head.last(torch.relu(head.first(torch.stack(similar)))))
    return torch.stack(rows).view(len(LENGTHS), SPACE.num_labels)


@pytest.mark.parametrize("length", [3, 7, 9], ids=["cut", "exact", "padded"])
def test_logits_and_loss_equal_the_equations(length):
    head, given, targets = made(length), features(), Targets.from_lists(TRUTH)
    assert torch.allclose(head(given), slow(head, given), rtol=1e-4, atol=1e-5)
    got, expected = head.loss(given, targets, "train")["loss"], bce(slow(head, given), targets)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    tensors = [given.tokens, *head.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, tensors) for loss in (got, expected)), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def test_padding_has_no_similarity():
    head = made(9)
    assert torch.allclose(head(features(noise=True)), head(features()), rtol=1e-4, atol=1e-5)


def test_labels_share_all_but_a_vector():
    head = EXAM(DIM, SPACE, length=10)
    sizes = {name: parameter.numel() for name, parameter in head.named_parameters()}
    assert sizes == {"embedding": 5 * DIM, "first.weight": 20 * 10, "first.bias": 20, "last.weight": 20, "last.bias": 1}
