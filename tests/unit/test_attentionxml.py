"""AttentionXML against the order of the paper, one document and one label at a time."""

from __future__ import annotations

import pytest
import torch

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads import AttentionXML
from heads.base import bce

SPACE = LabelSpace(["a", "b", "c", "d", "e"], [9, 8, 3, 1, 1], 20, vocab_size=9)
DIM, LENGTHS, TRUTH = 6, [4, 1, 7], [[0, 3], [], [1, 2, 4]]


def features():
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randn(*mask.shape, DIM, generator=torch.Generator().manual_seed(0)) * mask.unsqueeze(-1)
    tokens.requires_grad_()
    return Features(tokens, mask, tokens.sum(1), (tokens,))


def slow(head, given):
    """Attention first and then every layer, as the paper has it."""
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
def test_logits_and_loss_equal_the_order_of_the_paper(hidden):
    torch.manual_seed(0)
    head, given, targets = AttentionXML(DIM, SPACE, hidden=hidden), features(), Targets.from_lists(TRUTH)
    torch.nn.init.normal_(head.query)
    assert torch.allclose(head(given), slow(head, given), atol=1e-6)
    got, expected = head.loss(given, targets, "train")["loss"], bce(slow(head, given), targets)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    tensors = [given.tokens, *head.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, tensors) for loss in (got, expected)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_all_labels_share_the_layers():
    head = AttentionXML(DIM, SPACE, hidden=[7, 3])
    assert sum(p.numel() for p in head.parameters()) == 5 * DIM + (DIM + 1) * 7 + (7 + 1) * 3 + (3 + 1)


@pytest.mark.parametrize("hidden", [[], [0], [8, -1]])
def test_no_hidden_layer_is_refused(hidden):
    with pytest.raises(UserError, match=r"--model\.head\.hidden=.*(give the width of at least one layer|is too low)"):
        AttentionXML(DIM, SPACE, hidden=hidden)
