"""A pretrained encoder on words against the tokenizer and the encoder themselves."""

import pytest
import torch

from backbones import Transformer, WordTransformer
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.hub import from_settings_alone
from datamodules.prepare.vocabulary import load_pretrained
from tests.support.encoders import save_bert
from tests.support.errors import raises
from tests.support.vocabularies import build_features, build_words
from zoo.core.errors import UserError

TEXTS = ["alpha betamax gamma", "Delta, alpha! unheard-of delta epsilon gamma beta alpha gamma", "delta", "?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_bert(tmp_path_factory.mktemp("bert"), ["alpha beta gamma delta epsilon max un heard of"] * 3))


@pytest.fixture(scope="module")
def words():
    return build_words([text for text in TEXTS if "unheard" not in text] + ["epsilon beta"], 100, 50)


def space_of(vocabulary):
    return LabelSpace(["a", "b"], [1, 1], 2, vocab_size=vocabulary.size, pad_id=vocabulary.pad_id)


def batch_of(rows, pad=0, columns=0, window=0):
    ids = torch.full((len(rows), max(map(len, rows)) + columns), pad)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), True
    return Batch(ids, mask, Targets.from_lists([[] for _ in rows]), torch.arange(len(rows)), window=window)


def made(folder, words, **settings):
    torch.manual_seed(0)
    model = WordTransformer(space_of(words), folder, **settings).eval()
    model.learn_words(words)
    return model


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_tokens_are_those_of_the_known_words(folder, words, windows):
    model = made(folder, words, max_length=9, windows=windows)
    tokenizer = load_pretrained(folder, 9, windows)
    known = {number: word for word, number in words.words().items() if number > 1}
    plain = [" ".join(known[i] for i in ids if i in known) for ids in words.encode(TEXTS)]
    assert plain[1] == "delta alpha delta epsilon gamma beta alpha gamma"
    found = model.translated(batch_of(words.encode(TEXTS), columns=2))
    expected = tokenizer.encode(plain)
    assert [ids[mask].tolist() for ids, mask in zip(found.ids, found.mask, strict=True)] == expected
    assert (found.window, found.mask.shape[1]) == (9, max(map(len, expected)))


def test_vectors_are_those_of_the_encoder(folder, words):
    model = made(folder, words, max_length=9, windows=2, combine="max")
    tokens = model.translated(batch_of(words.encode(TEXTS)))
    same = Transformer(LabelSpace(["a"], [1], 1, vocab_size=5), folder, pooling="mean", combine="max").eval()
    rows = [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    found = model(batch_of(words.encode(TEXTS), columns=3))
    assert torch.allclose(found.pooled, same(batch_of(rows, window=9)).pooled, atol=1e-6)
    assert found.tokens.shape == (len(TEXTS), 0, model.dim)


def test_a_checkpoint_has_all_that_it_needs(folder, words):
    model = made(folder, words, max_length=9)
    with from_settings_alone():
        settings = {"name": folder, "max_length": 9} | model.self_contained()
        again = WordTransformer(space_of(words), **settings).eval()
        again.load_state_dict(model.state_dict())
    again.check_indices()
    batch = batch_of(words.encode(TEXTS))
    assert torch.equal(again(batch).pooled, model(batch).pooled)
    again.learn_words(words)  # has no tokenizer, and needs none
    assert torch.equal(again.pieces, model.pieces)


@pytest.mark.parametrize("buffer", ["pieces", "around"])
def test_tokens_beyond_the_encoder_are_refused(folder, words, buffer):
    model = made(folder, words)
    getattr(model, buffer)[1, 0] = 10**6
    with raises(UserError, "encoder"):
        model.check_indices()


@pytest.mark.parametrize("settings", [{"max_length": 500}, {"max_length": 8}, {"windows": 0}])
def test_invalid_settings_are_refused(folder, words, settings):
    with raises(UserError, *settings):
        made(folder, words, **settings)


def test_features_are_refused(folder, words):
    with raises(UserError, "WordTransformer"):
        made(folder, words).learn_words(build_features(["a:1 b:2"], 10, 10))
