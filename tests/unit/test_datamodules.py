"""Where corpora are looked for, what happens if there is none, and the batches that come out."""

from __future__ import annotations

import json

import pytest
import torch

from datamodules import EurLex, Reuters, Sample, TextDataModule, TextFiles
from datamodules.base import CorpusMissingError
from datamodules.errors import UserError
from datamodules.text import files_in

pytestmark = pytest.mark.usefixtures("clean_environment")


def many(size, prefix="d"):
    return [{"id": f"{prefix}{i}", "text": "word " * (1 + i % 7), "labels": [f"l{i % 3}"]} for i in range(size)]


def put(path, documents):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(d) + "\n" for d in documents))
    return str(path)


def text_files(folder, **kwargs):
    files = {"train": put(folder / "train.jsonl", many(40)), "val": put(folder / "val.jsonl", many(10, "v"))}
    return TextFiles(**files, cache_dir=str(folder / "cache"), **kwargs)


def reuters(folder, **kwargs):
    return Reuters(cache_dir=str(folder / "cache"), **kwargs)


def eurlex57k(folder, **kwargs):
    return EurLex(cache_dir=str(folder / "cache"), **kwargs)


# --- batches


def test_training_batches_hold_each_document_once(tmp_path):
    data = text_files(tmp_path, batch_size=8)
    batches = list(data.train_dataloader())
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(40))
    assert [len(batch) for batch in batches] == [8] * 5
    rows = data.prepared.rows("train")
    for batch in batches:
        assert batch.mask.sum(1).tolist() == rows.lengths[batch.rows.numpy()].tolist()
        assert batch.ids.shape == batch.mask.shape == (8, int(batch.mask.sum(1).max()))
        assert (batch.ids[~batch.mask] == data.space.pad_id).all()
        assert torch.equal(batch.targets.indices, rows[batch.rows.tolist()].targets.indices)


def test_order_of_training_batches_follows_the_seed(tmp_path):
    orders = [
        [b.rows.tolist() for b in text_files(tmp_path, batch_size=4, seed=s).train_dataloader()] for s in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_evaluation_batches_cover_the_split_with_their_own_size(tmp_path):
    data = text_files(tmp_path, eval_batch_size=4)
    batches = list(data.val_dataloader())
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(10))


def test_a_missing_test_split_is_told_when_it_is_needed(tmp_path):
    data = text_files(tmp_path)
    assert len(data.val_dataloader()) == 1
    with pytest.raises(UserError, match=r"there are no test documents"):
        data.test_dataloader()


def test_max_length_truncates(tmp_path):
    assert text_files(tmp_path, max_length=3).prepared.rows("train").lengths.max() == 3


def test_propensity_constants_reach_the_space(tmp_path):
    one, other = text_files(tmp_path), text_files(tmp_path, propensity_a=0.6, propensity_b=2.6)
    assert (other.space.propensity_a, other.space.propensity_b) == (0.6, 2.6)
    assert not torch.equal(one.space.inverse_propensity(), other.space.inverse_propensity())


@pytest.mark.parametrize(
    "name", ["val_fraction", "batch_size", "eval_batch_size", "max_length", "limit_train", "limit_val"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_impossible_settings_are_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=name):
        text_files(tmp_path, **{name: value})


def test_validating_on_everything_is_refused(tmp_path):
    with pytest.raises(UserError, match="val_fraction"):
        text_files(tmp_path, val_fraction=1.0)


def test_cache_folder_comes_from_the_setting_then_the_environment_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Sample().cache_dir == tmp_path / ".cache" / "xmc-zoo"
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "env"))
    assert Sample().cache_dir == tmp_path / "env"
    assert Sample(cache_dir="~/own").cache_dir == tmp_path / "own"


# --- word vectors


def test_word_vectors_are_read_once(tmp_path, monkeypatch):
    (tmp_path / "v.txt").write_text("word 1 2 3\n")
    data = text_files(tmp_path, vectors=str(tmp_path / "v.txt"))
    first = data.word_vectors()
    assert first.matrix[data.prepared.vocabulary.words()["word"]].tolist() == [1, 2, 3]
    monkeypatch.setattr("datamodules.base.read_vectors", None)
    again = text_files(tmp_path, vectors=str(tmp_path / "v.txt")).word_vectors()
    assert torch.equal(first.matrix, again.matrix)
    assert first.coverage == again.coverage == pytest.approx(1 / 3)


def test_word_vectors_are_looked_for_under_zoo_data(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "v.txt").write_text("word 1 2 3\n")
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    assert text_files(tmp_path, vectors="v.txt").word_vectors().matrix.shape == (3, 3)


def test_missing_word_vectors(tmp_path):
    with pytest.raises(UserError, match=r"no word vectors at none\.txt"):
        text_files(tmp_path, vectors="none.txt").word_vectors()
    assert text_files(tmp_path, vectors="none.txt", on_missing="sample").word_vectors() is None
    assert text_files(tmp_path).word_vectors() is None


# --- files


def test_a_missing_file_is_named(tmp_path):
    # not even `on_missing: sample` makes a misspelt path run on something else
    data = TextFiles(str(tmp_path / "none.jsonl"), on_missing="sample", cache_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"no such file: .*none\.jsonl \(--data\.train\)"):
        _ = data.corpus
    data = TextFiles(put(tmp_path / "train.jsonl", many(3)), test="gone.csv", cache_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"gone\.csv \(--data\.test\)"):
        _ = data.corpus


def test_a_missing_named_corpus_may_be_replaced_by_the_sample(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ZOO_DATA", raising=False)
    data = Reuters(on_missing="sample", cache_dir=str(tmp_path))
    assert data.is_sample
    assert data.corpus_name == "sample"
    assert "SAMPLE" in capsys.readouterr().err


def test_files_are_looked_for_under_zoo_data(tmp_path, monkeypatch):
    put(tmp_path / "data" / "mine" / "train.jsonl", many(3))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    data = TextFiles("mine/train.jsonl", cache_dir=str(tmp_path))
    assert data.corpus_name == "mine"
    assert not data.is_sample


def test_an_existing_corpus_is_never_replaced_by_the_sample(tmp_path):
    train = put(tmp_path / "train.jsonl", [{"id": "1", "body": "t", "labels": []}])
    with pytest.raises(UserError, match="no column 'text'"):
        _ = TextFiles(train, on_missing="sample", cache_dir=str(tmp_path / "cache")).prepared


# --- named corpora


def test_root_goes_before_zoo_data(tmp_path, monkeypatch):
    put(tmp_path / "root" / "train.jsonl", many(3))
    put(tmp_path / "data" / "reuters" / "train.jsonl", many(3))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    assert reuters(tmp_path, root=str(tmp_path / "root")).corpus.sources["train"].path.parent == tmp_path / "root"
    found = reuters(tmp_path).corpus
    assert found.sources["train"].path.parent == tmp_path / "data" / "reuters"
    assert found.name == "reuters"


def test_a_fetched_corpus_is_found_again(tmp_path):
    put(tmp_path / "cache" / "corpora" / "eurlex57k" / "train.jsonl", many(3))
    assert eurlex57k(tmp_path, download=False).corpus.name == "eurlex57k"


def test_the_message_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError, match=r"no such folder: \S+ \(--data.root\)"):
        _ = reuters(tmp_path, root=str(tmp_path / "root")).corpus
    (tmp_path / "root").mkdir()
    with pytest.raises(CorpusMissingError) as caught:
        _ = reuters(tmp_path, root=str(tmp_path / "root")).corpus
    message = str(caught.value)
    assert f"looked in {tmp_path / 'root'}, {tmp_path / 'data' / 'reuters'}; " in message
    assert "cannot be downloaded automatically" in message
    assert Reuters.how_to_get in message


def test_the_message_says_that_nothing_was_set(tmp_path):
    with pytest.raises(CorpusMissingError, match=r"neither --data\.root nor \$ZOO_DATA is set\); downloading is off"):
        _ = eurlex57k(tmp_path, download=False).corpus


def test_files_of_a_folder(tmp_path):
    assert files_in(tmp_path / "none") == {}
    put(tmp_path / "dev.jsonl", many(1))
    assert files_in(tmp_path) == {}
    (tmp_path / "train.csv.gz").touch()
    (tmp_path / "test.parquet").touch()
    names = {"train": "train.csv.gz", "val": "dev.jsonl", "test": "test.parquet"}
    assert files_in(tmp_path) == {split: tmp_path / name for split, name in names.items()}
    (tmp_path / "val.tsv").touch()
    with pytest.raises(UserError, match=r"has both val\.tsv and dev\.jsonl: keep one of them"):
        files_in(tmp_path)


# --- the sample as a corpus


def test_sample_in_a_small_size(tmp_path):
    data = Sample(num_documents=60, num_labels=8, words_per_document=40, labels_per_document=2, cache_dir=str(tmp_path))
    assert data.is_sample
    assert isinstance(data, TextDataModule)
    assert data.space.num_labels == 8
    batches = [*data.train_dataloader(), *data.val_dataloader(), *data.test_dataloader()]
    assert sum(len(batch) for batch in batches) == 60


def test_an_impossible_sample_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UserError, match="the sample cannot be made"):
        Sample(num_documents=2, num_labels=500, cache_dir=str(tmp_path))


def test_the_kind_of_file_is_part_of_the_cache_key(tmp_path):
    text = "id\tlabels\ttext\n" + "".join(f"d{i}\tx\tword\n" for i in range(40))
    for name in ("train.txt", "train.tsv"):
        (tmp_path / name).write_text(text)
    as_lines, as_table = (TextFiles(str(tmp_path / n), cache_dir=str(tmp_path)) for n in ("train.txt", "train.tsv"))
    assert as_lines.space.reference_documents == 41  # its first line is a document
    assert as_table.space.reference_documents == 40
