"""Cached document vectors are found by content, and only for the weights that they were computed with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from datamodules.prepare.dense_vectors import VectorCache
from datamodules.prepare.rows import EncodedRows
from heads import AttentionXML, Linear
from tests.support.encoded import EncodedRow, RowWriter
from tests.support.encoders import SPACE, VOCABULARY, encoder
from zoo.training.known_vectors import KnownVectors, cache_key, of_vectors, reads_vectors_only

PRECISION = "32-true"


class Data:
    """The part of a datamodule that is used."""

    def __init__(self, folder):
        self.cache_dir, self.files = folder / "cache", {}
        for number, (split, size) in enumerate({"train": 7, "val": 4, "test": 0}.items()):
            random = np.random.default_rng(number)
            with RowWriter(folder / f"{split}.arrow") as writer:
                for i in range(size):
                    writer.write(EncodedRow(f"d{i}", random.integers(2, VOCABULARY, 3 + i).tolist(), [0]))
            self.files[split] = EncodedRows(folder / f"{split}.arrow", SPACE.pad_id)
        self.prepared = SimpleNamespace(rows=self.files.__getitem__)

    def vector_cache(self, split, key, dim, encode=None):
        return VectorCache(self.cache_dir, self.files[split], key, dim, encode)


@pytest.fixture
def data(tmp_path):
    return Data(tmp_path)


@pytest.fixture
def model(data):
    made = encoder("bert")

    @torch.no_grad()
    def encode(batch):
        return made(batch).pooled

    for split in ("train", "val"):
        data.vector_cache(split, cache_key(made, PRECISION), made.dim, encode).finish()
    return made


def test_documents_of_all_splits_are_found_in_any_batch(data, model):
    known = KnownVectors(data, model, PRECISION)
    for split, rows in {"train": [5, 0, 3], "val": [2, 2]}.items():
        batch = data.files[split][rows]
        with torch.no_grad():
            expected = model(batch).pooled
        assert torch.allclose(known.find(batch), expected, atol=1e-6)
        features = of_vectors(known.find(batch), batch)
        assert torch.equal(features.pooled, known.find(batch))
        assert features.tokens.shape == (len(rows), 0, model.dim)


def test_an_unknown_document_is_not_found(data, model):
    batch = data.files["val"][[0, 1]]
    batch.ids[1, 0] = (batch.ids[1, 0] - 1) % (VOCABULARY - 2) + 2
    assert KnownVectors(data, model, PRECISION).find(batch) is None


def test_nothing_is_known_for_other_weights_or_precision(data, model):
    known, batch = KnownVectors(data, model, PRECISION), data.files["val"][[0]]
    parameter = next(model.parameters())
    before = parameter.detach().clone()
    assert known.find(batch) is not None
    with torch.no_grad():
        parameter[0, 0] += 1e-3
    assert known.find(batch) is None
    with torch.no_grad():
        parameter.copy_(before)
    assert known.find(batch) is not None
    assert KnownVectors(data, model, "bf16-mixed").find(batch) is None


def test_heads_that_read_more_than_the_vector():
    assert reads_vectors_only(Linear(16, SPACE))
    assert not reads_vectors_only(Linear(16, SPACE, layers=2))
    assert not reads_vectors_only(AttentionXML(16, SPACE))
