"""Cached document vectors: interrupted, reused, damaged and shared."""

import numpy as np
import pytest
import torch

from datamodules.prepare import dense_vectors
from datamodules.prepare.dense_vectors import FILE, VectorCache
from datamodules.prepare.rows import EncodedRows
from tests.support.encoded import EncodedRow, RowWriter
from tests.support.encoders import SPACE, VOCABULARY, encoder

DOCUMENTS = 13


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(dense_vectors, "BLOCK", 4)


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "train.arrow")


def write(path, seed=0, window=0):
    rng = np.random.default_rng(seed)
    with RowWriter(path) as writer:
        for i in range(DOCUMENTS):
            tokens = rng.integers(2, VOCABULARY, rng.integers(1, 9)).tolist()
            writer.write(EncodedRow(f"d{i}", tokens, [0]))
    return EncodedRows(path, SPACE.pad_id, window)


class Killed(BaseException):
    pass


class Counting:
    """An encoder that counts its calls, and is killed in one of them."""

    def __init__(self, last=1000):
        self.model, self.calls, self.last = encoder("bert"), 0, last

    @torch.no_grad()
    def __call__(self, batch):
        self.calls += 1
        if self.calls > self.last:
            raise Killed
        return self.model(batch).pooled


def cache(rows, encode, folder=None, key="one"):
    return VectorCache((folder or rows.path.parent) / "cache", rows, key, 16, encode, batch_size=3)


def computed(*args, **kwargs):
    made = cache(*args, **kwargs)
    made.compute()
    return made.finish().clone()


def test_vectors_are_those_of_documents_one_by_one(rows):
    found, model = computed(rows, Counting()), encoder("bert")
    with torch.no_grad():
        for i in range(DOCUMENTS):
            assert torch.allclose(found[i], model(rows[[i]]).pooled[0], atol=1e-6)


@pytest.mark.parametrize("last", [1, 4, 6])
def test_a_run_that_was_killed_continues_bit_exactly(rows, tmp_path, last):
    whole, stopped = Counting(), Counting(last)
    expected = computed(rows, whole, tmp_path / "whole")
    with pytest.raises(Killed):
        computed(rows, stopped)
    again = Counting()
    made = cache(rows, again)
    assert len(made.missing()) == 4 - last // 2  # blocks of two batches
    assert torch.equal(computed(rows, again), expected)
    assert again.calls == whole.calls - 2 * (last // 2)
    assert not made.blocks.exists()


def test_the_cache_is_mapped_and_reused(rows):
    first, second = Counting(), Counting()
    expected = computed(rows, first)
    found = cache(rows, second).load()
    assert torch.equal(found, expected)
    found[0] = 7  # stays in memory
    assert torch.equal(cache(rows, second).load(), expected)
    assert second.calls == 0


def test_other_documents_windows_and_encoders_have_caches_of_their_own(rows, tmp_path):
    one = cache(rows, Counting())
    assert one.folder == cache(EncodedRows(rows.path, SPACE.pad_id), Counting()).folder
    others = [
        cache(write(tmp_path / "other.arrow", seed=1), Counting()),
        cache(EncodedRows(rows.path, SPACE.pad_id, window=4), Counting()),
        cache(rows, Counting(), key="two"),
    ]
    assert len({one.folder, *(other.folder for other in others)}) == 4


def test_damage_is_found_and_repaired(rows, caplog):
    encode = Counting()
    expected = computed(rows, encode)
    made = cache(rows, encode)
    data = bytearray((made.folder / FILE).read_bytes())
    data[-3] ^= 1
    (made.folder / FILE).write_bytes(data)
    assert made.load() is None
    assert str(made.folder) in caplog.text
    assert torch.equal(computed(rows, encode), expected)
    assert torch.equal(made.load(), expected)


@pytest.mark.parametrize("content", [b"", b"PK", None])
def test_a_damaged_block_is_computed_again(rows, tmp_path, content):
    expected = computed(rows, Counting(), tmp_path / "whole")
    made = cache(rows, Counting())
    made.compute()
    block = made.blocks / "1.npz"
    kept = block.read_bytes()
    block.write_bytes(kept[:-40] + bytes(40) if content is None else content)
    assert made.missing() == [1]
    assert torch.equal(made.finish(), expected)


def test_processes_share_the_blocks(rows, tmp_path):
    expected = computed(rows, Counting(), tmp_path / "whole")
    encoders = [Counting(), Counting()]
    made = [cache(rows, encode) for encode in encoders]
    steps = []
    for rank, one in enumerate(made):
        one.compute(lambda given: steps.append(len(given)) or given, rank, 2)
    assert steps == [2, 2]
    assert [encode.calls for encode in encoders] == [4, 3]
    for one in made:
        assert torch.equal(one.finish(), expected)
    assert sum(encode.calls for encode in encoders) == 7


def test_the_digest_of_an_encoder_says_what_its_vectors_depend_on():
    one = encoder("bert")
    assert one.digest() == encoder("bert").train().digest()
    others = [
        encoder("bert", pooling="mean"),
        encoder("bert", combine="max"),
        encoder("bert", seed=1),
        encoder("bert", config={"layer_norm_eps": 1e-3}),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 5
    with torch.no_grad():
        next(one.parameters())[0, 0] += 1e-3
    assert one.digest() != encoder("bert").digest()
