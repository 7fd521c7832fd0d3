"""Encoded rows are read back from disk as they were written."""

import pickle
from random import Random

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from datamodules.prepare.rows import CHUNK, SCHEMA, Columns, EncodedRows, pad, stored_columns
from datamodules.samplers import LengthBatches
from tests.support.encoded import EncodedRow, RowWriter
from zoo.core.ragged import Lists

PAD = 7


def make(size, seed=0):
    random = Random(seed)
    return [
        EncodedRow(
            f"d{i}",
            [random.randrange(8, 2**31) for _ in range(random.randint(1, 6))],
            sorted(random.sample(range(50), random.randint(0, 4))),
        )
        for i in range(size)
    ]


def store(path, source):
    with RowWriter(path) as writer:
        for row in source:
            writer.write(row)
    return EncodedRows(path, PAD)


def unpack(batch):
    tokens = [ids[mask].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True)]
    labels = [batch.targets.indices[a:b].tolist() for a, b in batch.targets.indptr.unfold(0, 2, 1).tolist()]
    return list(zip(tokens, labels, strict=True))


def same(one, other):
    pairs = [(one.ids, other.ids), (one.mask, other.mask), (one.rows, other.rows)]
    pairs += [(one.targets.indptr, other.targets.indptr), (one.targets.indices, other.targets.indices)]
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def source():
    return make(2 * CHUNK + 5)


@pytest.fixture(scope="module")
def rows(source, tmp_path_factory):
    return store(tmp_path_factory.mktemp("rows") / "train.arrow", source)


def test_batches_across_chunks_equal_the_source(source, rows):
    assert len(rows) == len(source)
    assert rows.lengths.tolist() == [len(row.tokens) for row in source]
    assert list(rows.ids()) == [row.id for row in source]
    chosen = [0, CHUNK - 1, CHUNK, 2 * CHUNK + 4, 2 * CHUNK - 1, 2 * CHUNK, 17]
    batch = rows[chosen]
    assert unpack(batch) == [(source[i].tokens, source[i].labels) for i in chosen]
    assert batch.rows.tolist() == chosen
    assert batch.ids.dtype == batch.targets.indices.dtype == torch.long
    assert batch.mask.dtype == torch.bool
    parts = (range(start, min(start + 100, len(rows))) for start in range(0, len(rows), 100))
    assert [item for part in parts for item in unpack(rows[list(part)])] == [(row.tokens, row.labels) for row in source]


def test_repeats_are_marked_as_not_counted(source, rows):
    batch = rows[[3, ~3, ~0, 0]]
    assert batch.rows.tolist() == [3, -1, -1, 0]
    assert unpack(batch) == [(source[i].tokens, source[i].labels) for i in (3, 3, 0, 0)]


def test_pickled_rows_read_the_same_file(rows):
    copy = pickle.loads(pickle.dumps(rows))
    assert (copy.path, copy.pad_id, len(copy)) == (rows.path, rows.pad_id, len(rows))
    assert same(copy[[1, CHUNK + 1]], rows[[1, CHUNK + 1]])
    assert len(pickle.dumps(rows)) < 1000


def test_padding_follows_the_tokens():
    ids, mask = pad([np.array([4, 5, 6]), np.array([8])], PAD)
    assert ids.tolist() == [[4, 5, 6], [8, PAD, PAD]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_tokens_with_the_padding_id_are_not_masked():
    _, mask = pad([np.array([PAD, PAD]), np.array([PAD])], PAD)
    assert mask.tolist() == [[True, True], [True, False]]


def test_documents_without_labels(tmp_path):
    batch = store(tmp_path / "a.arrow", [EncodedRow("a", [1], []), EncodedRow("b", [2, 3], [])])[[1, 0]]
    assert batch.targets.indptr.tolist() == [0, 0, 0]
    assert batch.targets.indices.dtype == torch.long
    assert batch.ids.tolist() == [[2, 3], [1, PAD]]


def test_an_empty_split(tmp_path):
    rows = store(tmp_path / "a.arrow", [])
    assert len(rows) == 0
    assert list(rows.ids()) == []
    assert rows.token_counts(5).shape == (0, 5)
    assert list(LengthBatches(rows.lengths, 4, shuffle=True)) == []


def test_batches_of_any_size_are_stored_like_single_rows(tmp_path, source, rows):
    with RowWriter(tmp_path / "a.arrow") as writer:
        for start, stop in ((0, 3), (3, 3), (3, 2 * CHUNK), (2 * CHUNK, len(source))):
            part = source[start:stop]
            tokens, labels = (
                Lists.of_sizes([len(row) for row in lists], np.array([i for row in lists for i in row], dtype=np.int32))
                for lists in ([row.tokens for row in part], [row.labels for row in part])
            )
            writer.write_batch(Columns(pa.array([row.id for row in part], pa.string()), tokens, labels).batch())
    stored, expected = (pa.ipc.open_file(str(path)).read_all() for path in (tmp_path / "a.arrow", rows.path))
    assert stored.equals(expected)
    assert [len(batch) for batch in stored.to_batches()] == [CHUNK, CHUNK, 5]
    read = [id for columns in stored_columns(rows.path) for id in columns.ids.to_pylist()]
    assert read == [row.id for row in source]


def test_lists_as_sets():
    lists = Lists.of_sizes([3, 0, 4], np.array([5, 2, 5, 9, 1, 9, 0], dtype=np.int32)).sets()
    assert [lists[i].tolist() for i in range(3)] == [[2, 5], [], [0, 1, 9]]
    assert lists.values.dtype == np.int32


def test_worker_processes_give_the_same_batches(rows):
    def batches(num_workers):
        sampler = LengthBatches(rows.lengths[:64], 8, shuffle=True)
        return list(
            DataLoader(rows, sampler=sampler, batch_size=None, num_workers=num_workers, timeout=10 * num_workers)
        )

    alone, helped = batches(0), batches(2)
    assert len(alone) == 8
    assert all(same(a, b) for a, b in zip(alone, helped, strict=True))


def test_token_counts(tmp_path):
    source = [EncodedRow("a", [3, 1, 3, 3], []), EncodedRow("b", [0], [1])] * CHUNK  # more than one record batch
    counts = store(tmp_path / "rows.arrow", source).token_counts(5)
    assert counts.shape == (2 * CHUNK, 5)
    assert counts.dtype == np.float32
    assert counts[[0, 1, 2 * CHUNK - 2, 2 * CHUNK - 1]].toarray().tolist() == [[0, 1, 0, 3, 0], [1, 0, 0, 0, 0]] * 2
    assert counts.nnz == 3 * CHUNK


VALUED = [EncodedRow("a", [3, 4], [0], [0.5, 2.0]), EncodedRow("b", [1], [], [0.0])] * CHUNK


@pytest.fixture(scope="module")
def valued(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "train.arrow"
    with RowWriter(path, values=True) as writer:
        for row in VALUED:
            writer.write(row)
    return EncodedRows(path, 0)


def test_values_stay_with_their_tokens(valued):
    batch = valued[[1, 2 * CHUNK - 2, ~0]]
    assert batch.ids.tolist() == [[1, 0], [3, 4], [3, 4]]
    assert batch.values.tolist() == [[0.0, 0.0], [0.5, 2.0], [0.5, 2.0]]
    assert batch.values.dtype == torch.float32
    assert torch.equal(pickle.loads(pickle.dumps(valued))[[0]].values, valued[[0]].values)


def test_values_are_the_token_counts(valued):
    counts = valued.token_counts(6)
    assert counts[[0, 1]].toarray().tolist() == [[0, 0, 0, 0.5, 2.0, 0], [0] * 6]
    assert counts.nnz == 2 * CHUNK  # values of 0 are not stored
    assert counts.dtype == np.float32


def test_rows_without_values_have_no_values_column(tmp_path):
    with RowWriter(tmp_path / "a.arrow") as writer:
        writer.write(EncodedRow("a", [3, 4], [0]))
    assert pa.ipc.open_file(str(tmp_path / "a.arrow")).schema == SCHEMA
    assert EncodedRows(tmp_path / "a.arrow", 0)[[0]].values is None
