"""Features with values on their way from a line to a batch, and from a checkpoint's text back to a vocabulary."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

from datamodules.batch import Batch, Targets
from datamodules.errors import UserError
from datamodules.rows import CHUNK, SCHEMA, EncodedRows, pad, pad_values
from datamodules.vocab import FeatureVocabulary, Vocabulary
from tests.unit.encoded import EncodedRow, RowWriter
from tests.unit.vocabularies import build_features, build_words

TEXTS = ["a:1 b:0.5", "b:2 c:1e-2 d:-3", "b c:0"]


def test_features_are_ranked_by_documents_and_then_by_name():
    vocabulary = build_features(TEXTS, 100, 50)
    ranked = sorted(vocabulary.words(), key=vocabulary.words().__getitem__)
    assert ranked == ["[PAD]", "[UNK]", "[VALUES]", "b", "a", "c", "d"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 7)
    assert build_features(TEXTS, 5, 50).size == 5


def test_values_stand_beside_ids_and_one_may_be_left_out():
    ids, values = build_features(TEXTS, 100, 50).encode_with_values(["b:2 a d:-0.5", "  c:3\t"])
    assert ids == [[3, 4, 6], [5]]
    assert values == [[2.0, 1.0, -0.5], [3.0]]


@pytest.mark.parametrize("text", ["", " ", "unheard:3 of", "b:0 a:0.0", "[UNK]:1 [PAD]:1 [VALUES]"])
def test_a_document_without_known_features_has_an_unknown_one_that_weighs_nothing(text):
    assert build_features(TEXTS, 100, 50).encode_with_values([text]) == ([[1]], [[0.0]])


@pytest.mark.parametrize("text", ["a:x", "a:", ":1", "a:nan", "b:1 a:inf", "a:b:c"])
def test_a_value_that_is_no_number_is_a_mistake_of_the_user(text):
    with pytest.raises(UserError, match="is not a feature: expected a name, or name:value with a number"):
        build_features(TEXTS, 100, 50).encode([text])


def test_the_text_form_is_a_vocabulary_of_features_again():
    one = build_features(TEXTS, 100, 1)
    other = Vocabulary.from_text(one.text, 1)
    texts = [*TEXTS, "", "new:1"]
    assert isinstance(other, FeatureVocabulary)
    assert other.has_values
    assert one.encode_with_values(texts) == other.encode_with_values(texts)
    assert (other.text, other.size, other.words()) == (one.text, one.size, one.words())


def test_words_have_no_values():
    vocabulary = Vocabulary.from_text(build_words(["values", "[VALUES]"], 100, 50).text, 50)
    assert not vocabulary.has_values
    assert vocabulary.encode_with_values(["values"]) == ([[2]], None)


def test_nothing_is_cut_off():
    many = " ".join(f"n{i}:1" for i in range(3000))
    assert len(build_features([many], 10_000, 1).encode([many])[0]) == 3000


# --- rows


SOURCE = [EncodedRow("a", [3, 4], [0], [0.5, 2.0]), EncodedRow("b", [1], [], [0.0])] * CHUNK


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "train.arrow"
    with RowWriter(path, values=True) as writer:
        for row in SOURCE:
            writer.write(row)
    return EncodedRows(path, 0)


def test_values_come_back_in_their_places(rows):
    batch = rows[[1, 2 * CHUNK - 2, ~0]]
    assert batch.ids.tolist() == [[1, 0], [3, 4], [3, 4]]
    assert batch.values.tolist() == [[0.0, 0.0], [0.5, 2.0], [0.5, 2.0]]
    assert batch.values.dtype == torch.float32
    assert torch.equal(pickle.loads(pickle.dumps(rows))[[0]].values, rows[[0]].values)


def test_values_are_the_counts(rows):
    counts = rows.token_counts(6)
    assert counts[[0, 1]].toarray().tolist() == [[0, 0, 0, 0.5, 2.0, 0], [0] * 6]
    assert counts.nnz == 2 * CHUNK  # a value of 0 is no word
    assert counts.dtype == np.float32


def test_rows_of_texts_are_written_as_ever(tmp_path):
    with RowWriter(tmp_path / "a.arrow") as writer:
        writer.write(EncodedRow("a", [3, 4], [0]))
    assert pa.ipc.open_file(str(tmp_path / "a.arrow")).schema == SCHEMA
    assert EncodedRows(tmp_path / "a.arrow", 0)[[0]].values is None


def test_the_beginning_of_a_batch():
    ids, mask = pad([np.array([3, 4, 5]), np.array([6])], 0)
    values = pad_values([np.array([1.0, 2.0, 3.0]), np.array([4.0])], mask)
    batch = Batch(ids, mask, Targets.from_lists([[], []]), torch.arange(2), values)
    short = batch.first(2)
    assert short.ids.tolist() == [[3, 4], [6, 0]]
    assert short.mask.tolist() == [[True, True], [True, False]]
    assert short.values.tolist() == [[1.0, 2.0], [4.0, 0.0]]
    assert batch.first(None) is batch.first(3) is batch
    assert Batch(ids, mask, batch.targets, batch.rows).first(1).values is None
