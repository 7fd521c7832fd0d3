"""One encoder for each level of a label tree."""

from functools import partial

import torch

from backbones import BiLSTM, PerLevel, Transformer
from tests.support.documents import label_space, random_batch
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([9, 8], 12, vocab_size=8)
encoder = partial(BiLSTM, embed_dim=4, hidden=3, dropout=0.0, embed_dropout=0.0)


def test_levels_are_layers_and_later_ones_do_not_run():
    torch.manual_seed(0)
    backbone, batch = PerLevel(SPACE, encoder, levels=3), random_batch([7, 3, 5], 8)
    first, second, _ = backbone.encoders
    assert torch.equal(backbone(batch).states(2), second(batch).tokens)  # all of them run to begin with
    backbone.begin(0)
    found = backbone(batch)
    assert backbone.num_layers == len(found.layers) == 3
    for layer in (1, 2, 3, -1):
        assert torch.equal(found.states(layer), first(batch).tokens)
        assert torch.equal(found.vector(layer), first(batch).pooled)
    assert not torch.equal(second(batch).tokens, first(batch).tokens)
    backbone.begin(1)
    assert torch.equal(second(batch).tokens, first(batch).tokens)  # begins as the one above
    torch.nn.init.normal_(second.embedding.weight)
    found = backbone(batch)
    assert torch.equal(found.states(1), first(batch).tokens)
    assert torch.equal(found.states(2), second(batch).tokens)
    assert torch.equal(found.tokens, second(batch).tokens)


def test_word_vectors_reach_all_levels():
    backbone, vectors = PerLevel(SPACE, encoder), torch.rand(SPACE.vocab_size, 4)
    backbone.load_vectors(vectors)
    assert all(torch.equal(copy.embedding.weight, vectors) for copy in backbone.encoders)
    with raises(UserError, "`embed_dim=5`"):
        backbone.load_vectors(torch.rand(SPACE.vocab_size, 5))


def transformer(space):
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return Transformer(space, name="bert", pretrained=False, config=config)


def test_invalid_levels_are_rejected():
    with raises(UserError, "PerLevel", "Transformer"):
        PerLevel(SPACE, transformer)
    with raises(UserError, "`levels=0`"):
        PerLevel(SPACE, encoder, levels=0)
    with raises(UserError, "`levels=3`"):
        PerLevel(SPACE, encoder).begin(2)
