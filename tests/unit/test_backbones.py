"""Encoders against torch's own layers and against loops; padding is never seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from backbones import CNN, BiLSTM
from backbones.bilstm import reversed_positions
from backbones.cnn import dynamic_max_pool
from backbones.pooling import MaskedPool, masked_softmax
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError

SPACE = LabelSpace(["a", "b"], [3, 1], 4, vocab_size=20)
LENGTHS = [7, 1, 4, 12, 3]
POOLINGS = ["attention", "mean", "max"]


def batch_of(lengths, columns=0, seed=0):
    """Random documents, followed by so many columns of padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths) + columns, dtype=torch.long)
    mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    ids[mask] = torch.randint(1, SPACE.vocab_size, (sum(lengths),), generator=generator)
    return Batch(ids, mask, Targets.from_lists([[0]] * len(lengths)), torch.arange(len(lengths)))


def bilstm(pooling="attention", **kwargs):
    torch.manual_seed(0)
    return BiLSTM(SPACE, embed_dim=5, hidden=4, pooling=pooling, **kwargs).eval()


def cnn(**kwargs):
    torch.manual_seed(0)
    return CNN(SPACE, **{"embed_dim": 5, "dim": 10, "widths": (2, 3, 4), "chunks": 3} | kwargs).eval()


BACKBONES = {**{f"bilstm-{kind}": lambda kind=kind: bilstm(kind) for kind in POOLINGS}, "cnn": cnn}
every_backbone = pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES)


# --- all of them


@every_backbone
@torch.no_grad()
def test_padding_changes_nothing(make):
    backbone = make()
    tight, wide = backbone(batch_of(LENGTHS)), backbone(batch_of(LENGTHS, columns=9))
    length = max(LENGTHS)
    assert (wide.tokens[:, :length] - tight.tokens).abs().max() < 1e-6
    assert (wide.pooled - tight.pooled).abs().max() < 1e-6
    assert (wide.tokens[~wide.mask] == 0).all()
    assert torch.equal(wide.mask[:, :length], tight.mask)


@every_backbone
@torch.no_grad()
def test_a_document_alone_equals_its_row_in_a_batch(make):
    backbone, batch = make(), batch_of(LENGTHS)
    whole = backbone(batch)
    for i, n in enumerate(LENGTHS):
        alone = backbone(
            Batch(batch.ids[i : i + 1, :n], batch.mask[i : i + 1, :n], Targets.from_lists([[0]]), batch.rows)
        )
        assert torch.allclose(alone.tokens[0], whole.tokens[i, :n], atol=1e-6)
        assert torch.allclose(alone.pooled[0], whole.pooled[i], atol=1e-6)


@every_backbone
@torch.no_grad()
def test_features_have_the_promised_shapes(make):
    backbone = make()
    features = backbone(batch_of(LENGTHS))
    assert features.tokens.shape == (5, 12, backbone.dim)
    assert features.pooled.shape == (5, backbone.dim)
    assert len(features.layers) == backbone.num_layers
    assert features.layers[-1] is features.tokens


@every_backbone
@torch.no_grad()
def test_word_vectors_replace_the_table(make):
    backbone, vectors = make(), torch.randn(SPACE.vocab_size, 5)
    before = backbone(batch_of(LENGTHS)).pooled
    backbone.load_vectors(vectors)
    assert torch.equal(backbone.embedding.weight, vectors)
    assert not torch.allclose(backbone(batch_of(LENGTHS)).pooled, before)


@every_backbone
def test_word_vectors_of_another_width_are_refused(make):
    with pytest.raises(UserError, match=r"have 6 dimensions, the backbone 5: set --model\.backbone\.embed_dim=6"):
        make().load_vectors(torch.zeros(SPACE.vocab_size, 6))


@pytest.mark.parametrize("kind", [bilstm, cnn])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_embedding_gets_no_gradient(kind, frozen):
    backbone = kind(freeze_embedding=frozen)
    backbone.load_vectors(torch.randn(SPACE.vocab_size, 5))
    backbone(batch_of(LENGTHS)).pooled.square().sum().backward()
    assert (backbone.embedding.weight.grad is None) == frozen


def test_dropout_is_active_in_training_only():
    backbone = bilstm()
    batch = batch_of(LENGTHS)
    assert torch.equal(backbone(batch).pooled, backbone(batch).pooled)
    backbone.train()
    assert not torch.equal(backbone(batch).pooled, backbone(batch).pooled)
    assert (backbone(batch).tokens[~batch.mask] == 0).all()


def test_the_padding_vector_begins_at_zero_and_stays_there():
    space = LabelSpace(["a"], [1], 1, vocab_size=6, pad_id=2)
    backbone = BiLSTM(space, embed_dim=3, hidden=2)
    assert backbone.embedding.weight[2].tolist() == [0, 0, 0]
    assert (backbone.embedding.weight[[0, 1, 3, 4, 5]] != 0).all()
    batch = Batch(torch.tensor([[1, 2]]), torch.tensor([[True, False]]), Targets.from_lists([[0]]), torch.arange(1))
    backbone(batch).pooled.sum().backward()
    assert backbone.embedding.weight.grad[2].tolist() == [0, 0, 0]


# --- BiLSTM


@pytest.mark.parametrize("learned", [True, False])
@torch.no_grad()
def test_bilstm_equals_torch_on_packed_sequences(learned):
    backbone, batch = bilstm(learned_state=learned), batch_of(LENGTHS)
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


def test_learned_state_begins_at_zero_and_gets_a_gradient():
    backbone = bilstm()
    assert (backbone.state == 0).all()
    backbone(batch_of(LENGTHS)).pooled.sum().backward()
    assert (backbone.state.grad != 0).all()


def test_reversed_positions():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    assert reversed_positions(mask).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [3, 2, 1, 0]]


# --- CNN


def states(lengths, dim=6):
    torch.manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.rand(len(lengths), max(lengths), dim) * mask.unsqueeze(-1), mask


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_dynamic_max_pool_equals_adaptive_pooling_where_parts_are_equal(factor):
    tokens, mask = states([4 * factor, 4 * factor])
    expected = nn.AdaptiveMaxPool1d(4)(tokens.mT).mT
    assert torch.equal(dynamic_max_pool(tokens, mask, 4), expected)


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


def test_cnn_equals_plain_convolutions_of_one_document():
    backbone, batch = cnn(), batch_of([12])
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


def test_filters_share_the_width():
    assert [conv.out_channels for conv in cnn(dim=11).convs] == [4, 4, 3]


# --- pooling


def test_masked_softmax_equals_softmax_over_the_real_tokens():
    torch.manual_seed(0)
    scores, mask = torch.randn(4, 6) * 5, torch.arange(6) < torch.tensor([1, 3, 5, 6])[:, None]
    weights = masked_softmax(scores, mask)
    for row, n in enumerate([1, 3, 5, 6]):
        assert torch.allclose(weights[row, :n], scores[row, :n].softmax(0), atol=1e-6)
    assert (weights[~mask] == 0).all()
    assert torch.allclose(weights.sum(1), torch.ones(4))


def test_rows_without_tokens_have_zero_weights():
    assert masked_softmax(torch.randn(2, 3), torch.zeros(2, 3).bool()).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6, 1e12, 1e30])
def test_extreme_scores_give_neither_nan_nor_denormal_numbers(scale):
    scores = torch.tensor([[1, -1, 0, 1], [-1, -1, -1, 1], [0.5, 1, -1, 1]]) * scale
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    weights = masked_softmax(scores, mask)
    assert weights.isfinite().all()
    assert (weights[~mask] == 0).all()
    assert (weights[mask] >= 1e-30).all()
    assert torch.allclose(weights, torch.tensor([[1, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0, 0.5, 0, 0.5]]))


def test_extreme_scores_give_finite_gradients():
    scores = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    masked_softmax(scores, torch.tensor([[True, True, False]]))[0, 0].backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_equals_a_loop(kind):
    torch.manual_seed(0)
    pool, lengths = MaskedPool(6, kind), [1, 4, 9]
    tokens, mask = states(lengths)
    tokens = tokens - 2 * mask.unsqueeze(-1)  # all negative: padding is larger
    pooled = pool(tokens, mask)
    for i, n in enumerate(lengths):
        real = tokens[i, :n]
        expected = {"mean": real.mean(0), "max": real.amax(0)}.get(kind)
        if expected is None:
            weights = torch.stack([x @ pool.score.weight[0] + pool.score.bias[0] for x in real]).softmax(0)
            expected = sum(w * x for w, x in zip(weights, real, strict=True))
        assert torch.allclose(pooled[i], expected, atol=1e-6)


# --- the beginning of documents


@pytest.mark.parametrize("make", [bilstm, cnn])
@pytest.mark.parametrize("first", [1, 4, 99])
@torch.no_grad()
def test_only_the_first_tokens_are_read(make, first):
    batch = batch_of(LENGTHS)
    part = make(first=first)(batch)
    short = [min(length, first) for length in LENGTHS]
    whole = make()(Batch(batch.ids[:, :first], batch.mask[:, :first], batch.targets, batch.rows))
    assert part.mask.sum(1).tolist() == short
    assert part.tokens.shape[1] == part.mask.shape[1] == max(short)
    assert torch.equal(part.tokens, whole.tokens)
    assert torch.equal(part.pooled, whole.pooled)


@pytest.mark.parametrize("make", [bilstm, cnn])
def test_there_is_a_first_token(make):
    with pytest.raises(UserError, match=r"--model\.backbone\.first=0 is too low: the lowest is 1"):
        make(first=0)
