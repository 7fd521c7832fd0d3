"""The CNN encoder against plain convolutions, and dynamic max pooling against a loop."""

import pytest
import torch
from torch import nn

from backbones import CNN
from backbones.cnn import dynamic_max_pool
from tests.support.documents import label_space, random_batch, token_features

SPACE = label_space([3, 1], 4, vocab_size=20)


def cnn(dim=10):
    torch.manual_seed(0)
    return CNN(SPACE, embed_dim=5, dim=dim, widths=(2, 3, 4), chunks=3).eval()


def states(lengths):
    """Non-negative token states, and their mask."""
    features = token_features(lengths, dim=6)
    return features.tokens.detach().abs(), features.mask


@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_dynamic_max_pool_equals_a_loop(chunks):
    lengths = [1, 2, 3, 5, 7, 8, 9, 17]
    tokens, mask = states(lengths)
    expected = torch.zeros(len(lengths), chunks, 6)
    for i, n in enumerate(lengths):
        for t in range(n):
            part = t * chunks // n
            expected[i, part] = torch.maximum(expected[i, part], tokens[i, t])
    assert torch.equal(dynamic_max_pool(tokens, mask, chunks), expected)


def test_documents_shorter_than_the_chunks_leave_some_empty():
    tokens, mask = states([2, 9])
    pooled = dynamic_max_pool(tokens, mask, 4)
    assert [bool(part.any()) for part in pooled[0]] == [True, False, True, False]
    assert torch.equal(pooled[0, 2], tokens[0, 1])


def test_cnn_equals_plain_convolutions():
    backbone, batch = cnn(), random_batch([12], 20)
    words = backbone.embedding(batch.ids).mT
    found = []
    for conv, width in zip(backbone.convs, (2, 3, 4), strict=True):
        left = (width - 1) // 2
        padded = nn.functional.pad(words, (left, width - 1 - left))
        found.append(nn.functional.conv1d(padded, conv.weight, conv.bias).relu())
    states = torch.cat(found, 1)
    assert torch.allclose(backbone(batch).tokens, states.mT, atol=1e-6)
    chunks = nn.AdaptiveMaxPool1d(3)(states).mT.flatten(1)
    expected = nn.functional.linear(chunks, backbone.bottleneck.weight, backbone.bottleneck.bias).relu()
    assert torch.allclose(backbone(batch).pooled, expected, atol=1e-6)


def test_filters_divide_the_width():
    assert [conv.out_channels for conv in cnn(dim=11).convs] == [4, 4, 3]
