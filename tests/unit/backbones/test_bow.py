"""The bag of words against a loop over its words."""

from functools import partial

import pytest
import torch
from torch import nn

from backbones import BiLSTM, Bow, PerLevel
from tests.support.documents import label_space, random_batch
from tests.support.errors import raises
from zoo.core.errors import UserError

SPACE = label_space([3, 1], 4, vocab_size=12)
LENGTHS = [7, 1, 4, 9]


def batch_of(values=False, columns=0):
    return random_batch(LENGTHS, 10, columns, values, lowest=3)


def build_bow(batch=None, **kwargs):
    torch.manual_seed(0)
    bow = Bow(SPACE, **{"dim": 5, "dropout": 0.0, "min_documents": 1} | kwargs)
    bow.learn_counts(bow.tfidf.counts(batch or batch_of()))
    nn.init.normal_(bow.bias)
    return bow


def slow(bow, batch):
    """Vectors of documents, one word at a time."""
    ids, weights = bow.tfidf(batch)
    vectors = []
    for row, each in zip(ids, weights, strict=True):
        state = bow.bias.clone()
        for word, weight in zip(row, each, strict=True):
            state = state + weight * bow.words.weight[word]
        state = state.relu()
        for block in bow.blocks:
            state = state + (block.weight @ state + block.bias).relu()
        vectors.append(state)
    return torch.stack(vectors)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_vectors_and_gradients_equal_a_loop(values, tokens, blocks, sparse):
    batch = batch_of(values)
    bow = build_bow(batch, blocks=blocks, tokens=tokens, sparse=sparse)
    features, expected = bow(batch), slow(bow, batch)
    assert torch.allclose(features.pooled, expected, atol=1e-6)
    weights = list(bow.parameters())
    wanted = torch.autograd.grad(expected.square().sum(), weights)
    for got, right in zip(torch.autograd.grad(features.pooled.square().sum(), weights), wanted, strict=True):
        assert torch.allclose(got.to_dense() if got.is_sparse else got, right, atol=1e-5)


@pytest.mark.parametrize("values", [False, True])
@torch.no_grad()
def test_token_states_are_those_of_distinct_words(values):
    batch = batch_of(values)
    bow = build_bow(batch, tokens=True)
    features = bow(batch)
    ids, weights = bow.tfidf(batch)
    assert bow.has_tokens
    for row in range(len(batch)):
        words = [i for i in range(ids.shape[1]) if weights[row, i]]
        assert features.mask[row].sum() == len(set(ids[row, words].tolist())) == len(words)
        expected = bow.words.weight[ids[row, words]] * weights[row, words, None] * len(words) ** 0.5
        assert torch.allclose(features.tokens[row, : len(words)], expected, atol=1e-6)
    assert (features.tokens[~features.mask] == 0).all()


@pytest.mark.parametrize("tokens", [False, True])
@torch.no_grad()
def test_padding_and_word_order_do_not_change_features(tokens):
    bow = build_bow(tokens=tokens).eval()
    tight, wide = bow(batch_of()), bow(batch_of(columns=6))
    assert torch.allclose(tight.pooled, wide.pooled, atol=1e-6)
    assert torch.allclose(tight.tokens, wide.tokens, atol=1e-6)
    assert torch.equal(tight.mask, wide.mask)
    turned = batch_of()
    turned.ids, turned.mask = turned.ids.flip(1), turned.mask.flip(1)
    assert torch.allclose(bow(turned).pooled, tight.pooled, atol=1e-6)


@pytest.mark.parametrize("tokens", [False, True])
def test_documents_without_known_words(tokens):
    bow, batch = build_bow(tokens=tokens), batch_of()
    batch.ids[1, 0] = 11  # that no training document has
    features = bow(batch)
    assert torch.allclose(features.pooled[1], bow.bias.relu())
    assert tokens == (features.tokens.shape[1] > 0)
    if tokens:
        assert features.mask[1].sum() == 1
        assert not features.tokens[1].any()
    batch.ids.fill_(11)
    features = bow(batch)
    features.pooled.sum().backward()
    assert features.tokens.shape == (len(batch), int(tokens), bow.dim)
    assert bow.bias.grad.isfinite().all()


@torch.no_grad()
def test_no_token_states_by_default():
    features = build_bow()(batch_of())
    assert features.tokens.shape == (len(LENGTHS), 0, 5)
    assert features.mask.shape == (len(LENGTHS), 0)
    assert not Bow(SPACE, dim=5).has_tokens


def test_word_dropout_preserves_the_mean():
    bow, batch = build_bow(word_dropout=0.5), batch_of()
    weights = torch.stack([bow.word_dropout(bow.tfidf(batch)[1]) for _ in range(2000)])
    assert torch.allclose(weights.mean(0), bow.tfidf(batch)[1], atol=0.08)
    assert torch.equal(bow.eval()(batch).pooled, bow(batch).pooled)


def test_sparse_gradients_cover_the_words_of_the_batch():
    bow, batch = build_bow(sparse=True), batch_of()
    bow(batch).pooled.sum().backward()
    rows = bow.words.weight.grad.coalesce().indices()[0].tolist()
    assert rows == sorted(set(batch.ids[batch.mask].tolist()))


@pytest.mark.parametrize("settings", [{"dim": 0}, {"blocks": -1}, {"min_documents": 0}])
def test_invalid_settings_are_rejected(settings):
    with raises(UserError, *settings):
        Bow(SPACE, **settings)


def test_per_level_encoders_learn_counts():
    levels = PerLevel(SPACE, partial(Bow, dim=5, min_documents=1), levels=2)
    assert levels.reads_counts
    assert levels.reads_values
    levels.learn_counts(levels.encoders[0].tfidf.counts(batch_of()))
    assert all(encoder.tfidf.idf.any() for encoder in levels.encoders)
    assert not PerLevel(SPACE, partial(BiLSTM, embed_dim=4, hidden=2)).reads_counts


def test_word_vectors_must_match_dim():
    bow, vectors = build_bow(), torch.rand(SPACE.vocab_size, 5)
    bow.load_vectors(vectors)
    assert torch.equal(bow.words.weight, vectors)
    with raises(UserError, "`dim=3`"):
        bow.load_vectors(vectors[:, :3])
