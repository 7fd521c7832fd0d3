"""The word-vector encoders, BiLSTM and CNN, share these tests; BiLSTM against torch's own layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from backbones import CNN, BiLSTM
from backbones.bilstm import reversed_positions
from datamodules.batch import Batch, LabelSpace, Targets
from tests.support.documents import label_space, random_batch
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([3, 1], 4, vocab_size=20)
LENGTHS = [7, 1, 4, 12, 3]
POOLINGS = ["attention", "mean", "max"]


def bilstm(pooling="attention", **kwargs):
    torch.manual_seed(0)
    return BiLSTM(SPACE, embed_dim=5, hidden=4, pooling=pooling, **kwargs).eval()


def cnn(**kwargs):
    torch.manual_seed(0)
    return CNN(SPACE, embed_dim=5, dim=10, chunks=3, **kwargs).eval()


BACKBONES = {**{f"bilstm-{kind}": lambda kind=kind: bilstm(kind) for kind in POOLINGS}, "cnn": cnn}
every_backbone = pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES)


@every_backbone
@torch.no_grad()
def test_padding_does_not_change_features(make):
    backbone = make()
    tight, wide = backbone(random_batch(LENGTHS, 20)), backbone(random_batch(LENGTHS, 20, columns=9))
    length = max(LENGTHS)
    assert (wide.tokens[:, :length] - tight.tokens).abs().max() < 1e-6
    assert (wide.pooled - tight.pooled).abs().max() < 1e-6
    assert (wide.tokens[~wide.mask] == 0).all()
    assert torch.equal(wide.mask[:, :length], tight.mask)


@every_backbone
@torch.no_grad()
def test_features_do_not_depend_on_other_documents(make):
    backbone, batch = make(), random_batch(LENGTHS, 20)
    whole = backbone(batch)
    for i, n in enumerate(LENGTHS):
        one = Batch(batch.ids[i : i + 1, :n], batch.mask[i : i + 1, :n], Targets.from_lists([[0]]), batch.rows)
        alone = backbone(one)
        assert torch.allclose(alone.tokens[0], whole.tokens[i, :n], atol=1e-6)
        assert torch.allclose(alone.pooled[0], whole.pooled[i], atol=1e-6)


@every_backbone
@torch.no_grad()
def test_shapes_of_features(make):
    backbone = make()
    features = backbone(random_batch(LENGTHS, 20))
    assert features.tokens.shape == (5, 12, backbone.dim)
    assert features.pooled.shape == (5, backbone.dim)
    assert len(features.layers) == backbone.num_layers
    assert features.layers[-1] is features.tokens


@every_backbone
@torch.no_grad()
def test_word_vectors_replace_the_embedding(make):
    backbone, vectors = make(), torch.randn(SPACE.vocab_size, 5)
    before = backbone(random_batch(LENGTHS, 20)).pooled
    backbone.load_vectors(vectors)
    assert torch.equal(backbone.embedding.weight, vectors)
    assert not torch.allclose(backbone(random_batch(LENGTHS, 20)).pooled, before)


@pytest.mark.parametrize("kind", [bilstm, cnn])
@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_embeddings_get_no_gradient(kind, frozen):
    backbone = kind(freeze_embedding=frozen)
    backbone.load_vectors(torch.randn(SPACE.vocab_size, 5))
    backbone(random_batch(LENGTHS, 20)).pooled.square().sum().backward()
    assert (backbone.embedding.weight.grad is None) == frozen


def test_dropout_is_active_in_training_only():
    backbone = bilstm()
    batch = random_batch(LENGTHS, 20)
    assert torch.equal(backbone(batch).pooled, backbone(batch).pooled)
    backbone.train()
    assert not torch.equal(backbone(batch).pooled, backbone(batch).pooled)
    assert (backbone(batch).tokens[~batch.mask] == 0).all()


def test_padding_vector_is_zero_and_stays_zero():
    space = LabelSpace(["a"], [1], 1, vocab_size=6, pad_id=2)
    backbone = BiLSTM(space, embed_dim=3, hidden=2)
    assert backbone.embedding.weight[2].tolist() == [0, 0, 0]
    assert (backbone.embedding.weight[[0, 1, 3, 4, 5]] != 0).all()
    batch = Batch(torch.tensor([[1, 2]]), torch.tensor([[True, False]]), Targets.from_lists([[0]]), torch.arange(1))
    backbone(batch).pooled.sum().backward()
    assert backbone.embedding.weight.grad[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("learned", [True, False])
@torch.no_grad()
def test_bilstm_equals_torch_on_packed_sequences(learned):
    backbone, batch = bilstm(learned_state=learned), random_batch(LENGTHS, 20)
    lstm = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    for suffix, part in (("", backbone.forward_lstm), ("_reverse", backbone.backward_lstm)):
        for name, weight in part.named_parameters():
            getattr(lstm, name + suffix).copy_(weight)
    start = None
    if learned:
        backbone.state.copy_(torch.randn(2, 2, 4))
        start = tuple(backbone.state[:, i, None].expand(-1, len(LENGTHS), -1).contiguous() for i in (0, 1))
    packed = pack_padded_sequence(backbone.embedding(batch.ids), LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(lstm(packed, start)[0], batch_first=True)
    assert torch.allclose(backbone(batch).tokens, expected, atol=1e-5)


def test_learned_state_starts_at_zero_and_gets_a_gradient():
    backbone = bilstm()
    assert (backbone.state == 0).all()
    backbone(random_batch(LENGTHS, 20)).pooled.sum().backward()
    assert (backbone.state.grad != 0).all()


def test_reversed_positions():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    assert reversed_positions(mask).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [3, 2, 1, 0]]


@pytest.mark.parametrize("make", [bilstm, cnn])
@pytest.mark.parametrize("first", [1, 4, 99])
@torch.no_grad()
def test_only_the_first_tokens_are_read(make, first):
    batch = random_batch(LENGTHS, 20)
    part = make(first=first)(batch)
    short = [min(length, first) for length in LENGTHS]
    whole = make()(Batch(batch.ids[:, :first], batch.mask[:, :first], batch.targets, batch.rows))
    assert part.mask.sum(1).tolist() == short
    assert part.tokens.shape[1] == part.mask.shape[1] == max(short)
    assert torch.equal(part.tokens, whole.tokens)
    assert torch.equal(part.pooled, whole.pooled)


@pytest.mark.parametrize("make", [bilstm, cnn])
def test_first_must_be_positive(make):
    with raises(UserError, "`first=0`"):
        make(first=0)
