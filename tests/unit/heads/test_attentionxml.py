"""AttentionXML against the order of the paper, one document and one label at a time."""

import pytest
import torch

from datamodules.batch import Targets
from heads import AttentionXML
from heads.losses import bce
from tests.support.documents import label_space, token_features
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([9, 8, 3, 1, 1], 20)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]


def features():
    return token_features(LENGTHS, DIM)


def slow(head, given):
    """Attention first, then every layer, as in the paper."""
    layers, rows = [head.first, *head.rest], []
    for tokens, length in zip(given.tokens, LENGTHS, strict=True):
        for query in head.query:
            weights = torch.softmax(tokens[:length] @ query, dim=0)
            x = weights @ tokens[:length]
            for layer in layers[:-1]:
                x = torch.relu(x @ layer.weight.T + layer.bias)
            rows.append(layers[-1](x))
    return torch.stack(rows).view(len(LENGTHS), SPACE.num_labels)


@pytest.mark.parametrize("hidden", [[8], [7, 3]])
def test_logits_and_loss_equal_the_equations(hidden):
    torch.manual_seed(0)
    head, given, targets = AttentionXML(DIM, SPACE, hidden=hidden), features(), Targets.from_lists(TRUTH)
    torch.nn.init.normal_(head.query)
    assert torch.allclose(head(given), slow(head, given), atol=1e-6)
    got, expected = head.loss(given, targets, "train")["loss"], bce(slow(head, given), targets)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    tensors = [given.tokens, *head.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, tensors) for loss in (got, expected)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_labels_share_the_layers():
    head = AttentionXML(DIM, SPACE, hidden=[7, 3])
    assert sum(p.numel() for p in head.parameters()) == 5 * DIM + (DIM + 1) * 7 + (7 + 1) * 3 + (3 + 1)


@pytest.mark.parametrize("hidden", [[], [0], [8, -1]])
def test_invalid_hidden_layers_are_rejected(hidden):
    with raises(UserError, f"hidden={hidden[-1] if hidden else hidden}"):
        AttentionXML(DIM, SPACE, hidden=hidden)
