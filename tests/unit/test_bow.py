"""The bag of words against a loop over its words."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from backbones import BiLSTM, Bow, PerLevel
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError

SPACE = LabelSpace(["a", "b"], [3, 1], 4, vocab_size=12)
LENGTHS = [7, 1, 4, 9]


def batch_of(values=False, columns=0):
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(LENGTHS) + columns) < torch.tensor(LENGTHS)[:, None]
    ids, given = torch.zeros(mask.shape, dtype=torch.long), torch.zeros(mask.shape)
    ids[mask] = torch.randint(3, 10, (sum(LENGTHS),), generator=generator)
    given[mask] = torch.rand(sum(LENGTHS), generator=generator) * 3
    rows = torch.arange(len(LENGTHS))
    return Batch(ids, mask, Targets.from_lists([[0]] * len(LENGTHS)), rows, given if values else None)


def made(batch=None, **kwargs):
    torch.manual_seed(0)
    bow = Bow(SPACE, **{"dim": 5, "dropout": 0.0, "min_documents": 1} | kwargs)
    bow.learn_counts(bow.tfidf.counts(batch or batch_of()))
    nn.init.normal_(bow.bias)
    return bow


def slow(bow, batch):
    """Documents' vectors, one word after the other."""
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
def test_it_equals_a_loop_and_so_do_its_gradients(values, tokens, blocks, sparse):
    batch = batch_of(values)
    bow = made(batch, blocks=blocks, tokens=tokens, sparse=sparse)
    features, expected = bow(batch), slow(bow, batch)
    assert torch.allclose(features.pooled, expected, atol=1e-6)
    weights = list(bow.parameters())
    wanted = torch.autograd.grad(expected.square().sum(), weights)
    for got, right in zip(torch.autograd.grad(features.pooled.square().sum(), weights), wanted, strict=True):
        assert torch.allclose(got.to_dense() if got.is_sparse else got, right, atol=1e-5)


@pytest.mark.parametrize("values", [False, True])
@torch.no_grad()
def test_states_are_those_of_distinct_words(values):
    batch = batch_of(values)
    bow = made(batch, tokens=True)
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
def test_padding_and_the_order_of_words_change_nothing(tokens):
    bow = made(tokens=tokens).eval()
    tight, wide = bow(batch_of()), bow(batch_of(columns=6))
    assert torch.allclose(tight.pooled, wide.pooled, atol=1e-6)
    assert torch.allclose(tight.tokens, wide.tokens, atol=1e-6)
    assert torch.equal(tight.mask, wide.mask)
    turned = batch_of()
    turned.ids, turned.mask = turned.ids.flip(1), turned.mask.flip(1)
    assert torch.allclose(bow(turned).pooled, tight.pooled, atol=1e-6)


@pytest.mark.parametrize("tokens", [False, True])
def test_documents_without_known_words_have_a_vector_and_a_state(tokens):
    bow, batch = made(tokens=tokens), batch_of()
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
def test_without_states_there_are_no_columns():
    features = made()(batch_of())
    assert features.tokens.shape == (len(LENGTHS), 0, 5)
    assert features.mask.shape == (len(LENGTHS), 0)
    assert not Bow(SPACE, dim=5).has_tokens


def test_dropout_of_words_leaves_others_as_large_on_average():
    bow, batch = made(word_dropout=0.5), batch_of()
    weights = torch.stack([bow.word_dropout(bow.tfidf(batch)[1]) for _ in range(2000)])
    assert torch.allclose(weights.mean(0), bow.tfidf(batch)[1], atol=0.08)
    assert torch.equal(bow.eval()(batch).pooled, bow(batch).pooled)


def test_a_step_touches_only_its_words_where_gradients_are_sparse():
    bow, batch = made(sparse=True), batch_of()
    bow(batch).pooled.sum().backward()
    rows = bow.words.weight.grad.coalesce().indices()[0].tolist()
    assert rows == sorted(set(batch.ids[batch.mask].tolist()))


def test_what_it_learns_from_counts_is_in_its_state():
    bow, other = made(), Bow(SPACE, dim=5, dropout=0.0, min_documents=1)
    assert {name: value.shape for name, value in bow.state_dict().items()} == {
        name: value.shape for name, value in other.state_dict().items()
    }
    other.load_state_dict(bow.state_dict())
    assert torch.equal(other(batch_of()).pooled, bow(batch_of()).pooled)


def test_word_vectors_must_fit():
    bow, vectors = made(), torch.rand(SPACE.vocab_size, 5)
    bow.load_vectors(vectors)
    assert torch.equal(bow.words.weight, vectors)
    with pytest.raises(UserError, match=r"have 3 dimensions, the backbone 5: set --model\.backbone\.dim=3"):
        bow.load_vectors(vectors[:, :3])


@pytest.mark.parametrize("settings", [{"dim": 0}, {"blocks": -1}, {"min_documents": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match=r"--model\.backbone\."):
        Bow(SPACE, **settings)


def test_levels_of_a_tree_learn_from_counts_too():
    levels = PerLevel(SPACE, partial(Bow, dim=5, min_documents=1), levels=2)
    assert levels.reads_counts
    assert levels.reads_values
    levels.learn_counts(levels.encoders[0].tfidf.counts(batch_of()))
    assert all(encoder.tfidf.idf.any() for encoder in levels.encoders)
    assert not PerLevel(SPACE, partial(BiLSTM, embed_dim=4, hidden=2)).reads_counts
