"""Long documents as windows against a slow loop that encodes each window as a document."""

from dataclasses import replace

import pytest
import torch

from backbones import Transformer
from datamodules.batch import Batch, Targets
from heads import Linear
from tests.support.documents import seeded
from tests.support.encoders import FAMILIES, LAYERS, SPACE, VOCABULARY, documents, encoder
from tests.support.errors import raises
from zoo.core.errors import UserError

SIZE, LENGTHS = 4, [11, 3, 8, 5]


def rows():
    return [torch.randint(2, VOCABULARY, (length,), generator=seeded(length)) for length in LENGTHS]


def batch(lists, window=SIZE, columns=0):
    ids = torch.full((len(lists), max(map(len, lists)) + columns), SPACE.pad_id)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for i, row in enumerate(lists):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    none = Targets.from_lists([[] for _ in lists])
    return Batch(ids, mask, none, torch.arange(len(lists)), window=window)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("pooling", "combine"), [("cls", "mean"), ("mean", "max"), ("mean", "mean")])
def test_windows_are_encoded_apart_and_combined(kind, pooling, combine):
    model = encoder(kind, pooling=pooling, combine=combine)
    found = model(batch(rows()))
    for i, row in enumerate(rows()):
        each = [model(batch([part], window=0)) for part in row.split(SIZE)]
        for layer in range(1, LAYERS + 1):
            states = torch.cat([part.states(layer)[0] for part in each])
            assert torch.allclose(found.states(layer)[i, : len(row)], states, atol=1e-5)
            vectors = torch.stack([part.vector(layer)[0] for part in each])
            sizes = torch.tensor([float(len(part)) for part in row.split(SIZE)])
            mean = (vectors * sizes[:, None]).sum(0) / sizes.sum()
            expected = vectors.amax(0) if combine == "max" else mean
            assert torch.allclose(found.vector(layer)[i], expected, atol=1e-5)
    assert found.pooled is found.vectors[-1]
    assert found.layers[-1] is found.tokens


def test_the_mean_of_scores_is_the_score_of_the_mean():
    model, head = encoder("bert", combine="mean"), Linear(16, SPACE)
    scores = head(model(batch(rows())))
    each = torch.cat([head(model(batch([part], window=0))) for part in rows()[0].split(SIZE)])
    assert torch.allclose(scores[0], each.T @ torch.tensor([4, 4, 3.0]) / 11, atol=1e-5)


def test_padding_does_not_change_features():
    model = encoder("bert", combine="max")
    tight, wide = model(batch(rows())), model(batch(rows(), columns=6))
    assert torch.allclose(tight.pooled, wide.pooled, atol=1e-6)
    assert torch.allclose(tight.tokens, wide.tokens[:, : tight.tokens.shape[1]], atol=1e-6)
    assert not wide.tokens[~wide.mask].any()


def test_documents_of_one_window_are_encoded_as_before():
    model, short = encoder("bert"), documents()
    one, other = model(short), model(replace(short, window=short.ids.shape[1]))
    assert torch.equal(one.pooled, other.pooled)


def test_all_windows_get_gradients():
    model = encoder("bert", pooling="cls").train()
    words = batch([torch.arange(2, 13)])
    pooled = model(words).pooled  # its plain sum is constant after a layer norm
    (pooled * torch.randn(pooled.shape, generator=seeded(0))).sum().backward()
    embedding = model.encoder.get_input_embeddings().weight.grad
    assert (embedding[words.ids[0]].abs().sum(1) > 0).all()


def test_an_unknown_combination_is_refused():
    with raises(UserError, "combine", "median"):
        Transformer(SPACE, "bert", False, FAMILIES["bert"], combine="median")
