"""LSAN against its equations, one document and one label at a time."""

import pytest
import torch

from datamodules.batch import Targets
from heads import LSAN
from heads.losses import bce
from tests.support.documents import label_space, token_features
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([9, 8, 3, 1, 1], 20)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]
forms = pytest.mark.parametrize("normalize", [True, False], ids=["softmax", "sum"])


def features(noise=False):
    return token_features(LENGTHS, DIM, noise=noise)


def made(**kwargs):
    torch.manual_seed(0)
    head = LSAN(DIM, SPACE, attention_dim=4, hidden=7, **kwargs)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def slow(head, given):
    rows = []
    for tokens, length in zip(given.tokens, LENGTHS, strict=True):
        x = tokens[:length]
        for w2, c in zip(head.query, head.embedding, strict=True):
            m_s = torch.softmax(torch.tanh(x @ head.inner.weight.T) @ w2, dim=0) @ x
            m_l = (torch.softmax(x @ c, dim=0) if head.normalize else x @ c) @ x
            alpha, beta = torch.sigmoid(m_l @ head.gate.weight[0]), torch.sigmoid(m_s @ head.gate.weight[1])
            alpha, beta = alpha / (alpha + beta), beta / (alpha + beta)
            rows.append(head.last(torch.relu(head.first(alpha * m_l + beta * m_s))))
    return torch.stack(rows).view(len(LENGTHS), SPACE.num_labels)


@forms
def test_logits_and_loss_equal_the_equations(normalize):
    head, given, targets = made(normalize=normalize), features(), Targets.from_lists(TRUTH)
    assert torch.allclose(head(given), slow(head, given), rtol=1e-4, atol=1e-5)
    got, expected = head.loss(given, targets, "train")["loss"], bce(slow(head, given), targets)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    tensors = [given.tokens, *head.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, tensors) for loss in (got, expected)), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


@forms
def test_padding_is_not_attended(normalize):
    head = made(normalize=normalize)
    assert torch.allclose(head(features(noise=True)), head(features()), rtol=1e-4, atol=1e-5)


def test_labels_share_all_but_two_vectors():
    sizes = {name: parameter.numel() for name, parameter in made().named_parameters()}
    assert sizes["query"] + sizes["embedding"] == SPACE.num_labels * (4 + DIM)
    assert sum(sizes.values()) == SPACE.num_labels * (4 + DIM) + 4 * DIM + 2 * DIM + (DIM + 1) * 7 + (7 + 1)


@pytest.mark.parametrize("name", ["attention_dim", "hidden"])
def test_invalid_widths_are_rejected(name):
    with raises(UserError, f"`{name}=0`"):
        LSAN(DIM, SPACE, **{name: 0})


def test_attention_weights_are_those_that_are_scored():
    head, given = made(), features(noise=True)
    every = torch.arange(SPACE.num_labels).expand(len(LENGTHS), -1)
    fused = head.attention_weights(given, every) @ given.tokens
    logits = head.last(torch.relu(head.first(fused))).squeeze(-1)
    assert torch.allclose(logits, head(given), rtol=1e-4, atol=1e-5)
