"""The base datamodule: settings, batches, word vectors, and where corpora are looked for."""

import pytest
import torch

from datamodules import Reuters, Sample, TextFiles
from datamodules.base import CorpusMissingError
from datamodules.corpora.text_files import files_in
from tests.support.corpora import write_jsonl
from tests.support.errors import raises
from zoo.core.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_environment")


def documents(size, prefix="d"):
    return [{"id": f"{prefix}{i}", "text": "word " * (1 + i % 7), "labels": [f"l{i % 3}"]} for i in range(size)]


def text_files(folder, **kwargs):
    files = {
        "train": write_jsonl(folder / "train.jsonl", documents(40)),
        "val": write_jsonl(folder / "val.jsonl", documents(10, "v")),
    }
    return TextFiles(**files, cache_dir=str(folder / "cache"), **kwargs)


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


def test_evaluation_batches_cover_the_split(tmp_path):
    data = text_files(tmp_path, eval_batch_size=4)
    batches = list(data.val_dataloader())
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(10))


def test_a_missing_test_split_is_reported_when_needed(tmp_path):
    data = text_files(tmp_path)
    assert len(data.val_dataloader()) == 1
    with raises(UserError, data.corpus_name, "test"):
        data.test_dataloader()


def test_propensity_constants_reach_the_space(tmp_path):
    one, other = text_files(tmp_path), text_files(tmp_path, propensity_a=0.6, propensity_b=2.6)
    assert (other.space.propensity_a, other.space.propensity_b) == (0.6, 2.6)
    assert not torch.equal(one.space.inverse_propensity(), other.space.inverse_propensity())


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, 0) for name in ("val_fraction", "batch_size", "eval_batch_size", "max_length", "limit_train", "limit_val")]
    + [("val_fraction", 1.0), ("batch_size", -1)],
)
def test_invalid_settings_are_rejected(tmp_path, name, value):
    with raises(UserError, f"`{name}={value}`"):
        text_files(tmp_path, **{name: value})


def test_cache_folder_from_setting_environment_or_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Sample().cache_dir == tmp_path / ".cache" / "xmc-zoo"
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "env"))
    assert Sample().cache_dir == tmp_path / "env"
    assert Sample(cache_dir="~/own").cache_dir == tmp_path / "own"


def test_word_vectors_are_cached(tmp_path, monkeypatch):
    (tmp_path / "v.txt").write_text("word 1 2 3\n")
    data = text_files(tmp_path, vectors=str(tmp_path / "v.txt"))
    first = data.word_vectors()
    assert first.matrix[data.prepared.vocabulary.words()["word"]].tolist() == [1, 2, 3]
    monkeypatch.setattr("datamodules.prepare.cached_vectors.read_vectors", None)
    again = text_files(tmp_path, vectors=str(tmp_path / "v.txt")).word_vectors()
    assert torch.equal(first.matrix, again.matrix)
    assert first.coverage == again.coverage == pytest.approx(1 / 3)


def test_missing_word_vectors(tmp_path):
    with raises(UserError, "none.txt"):
        text_files(tmp_path, vectors="none.txt").word_vectors()
    assert text_files(tmp_path, vectors="none.txt", on_missing="sample").word_vectors() is None
    assert text_files(tmp_path).word_vectors() is None


def test_missing_files_are_named(tmp_path):
    # not even `on_missing: sample` makes a misspelt path run on something else
    data = TextFiles(str(tmp_path / "none.jsonl"), on_missing="sample", cache_dir=str(tmp_path))
    with raises(UserError, "none.jsonl", "`train`"):
        _ = data.corpus
    data = TextFiles(write_jsonl(tmp_path / "train.jsonl", documents(3)), test="gone.csv", cache_dir=str(tmp_path))
    with raises(UserError, "gone.csv", "`test`"):
        _ = data.corpus


def test_a_missing_named_corpus_may_be_replaced_by_the_sample(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ZOO_DATA", raising=False)
    data = Reuters(on_missing="sample", cache_dir=str(tmp_path))
    assert data.is_sample
    assert data.corpus_name == "sample"
    assert "SAMPLE" in capsys.readouterr().err


def test_files_are_looked_for_under_zoo_data(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "data" / "mine" / "train.jsonl", documents(3))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    data = TextFiles("mine/train.jsonl", cache_dir=str(tmp_path))
    assert data.corpus_name == "mine"
    assert not data.is_sample


def test_root_takes_precedence_over_zoo_data(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "root" / "train.jsonl", documents(3))
    write_jsonl(tmp_path / "data" / "reuters" / "train.jsonl", documents(3))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    assert (
        Reuters(cache_dir=str(tmp_path / "cache"), root=str(tmp_path / "root")).corpus.sources["train"].path.parent
        == tmp_path / "root"
    )
    found = Reuters(cache_dir=str(tmp_path / "cache")).corpus
    assert found.sources["train"].path.parent == tmp_path / "data" / "reuters"
    assert found.name == "reuters"


def test_a_missing_corpus_lists_the_places_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    with raises(UserError, tmp_path / "root", "`root`"):
        _ = Reuters(cache_dir=str(tmp_path / "cache"), root=str(tmp_path / "root")).corpus
    (tmp_path / "root").mkdir()
    with raises(CorpusMissingError, tmp_path / "data" / "reuters", Reuters.how_to_get):
        _ = Reuters(cache_dir=str(tmp_path / "cache")).corpus


def test_nothing_takes_the_place_of_a_corpus_in_an_explicit_folder(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    write_jsonl(tmp_path / "data" / "reuters" / "train.jsonl", documents(3))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    settings = {"cache_dir": str(tmp_path / "cache"), "root": str(tmp_path / "empty"), "on_missing": "sample"}
    with raises(UserError, f"`root={tmp_path / 'empty'}`", "reuters"):
        _ = Reuters(**settings).corpus

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("datamodules.corpora.named.files_in", refuse)  # root may read everything
    with raises(UserError, tmp_path / "empty", "Permission denied"):
        _ = Reuters(**settings).corpus
    with raises(UserError, tmp_path / "data" / "reuters", "Permission denied"):
        _ = Reuters(**settings | {"root": None}).corpus


def test_damaged_word_vectors_are_read_again(tmp_path, caplog):
    (tmp_path / "v.txt").write_text("word 1 2 3\n")
    data = text_files(tmp_path, vectors=str(tmp_path / "v.txt"))
    first = data.word_vectors()
    (cached,) = data.prepared.folder.glob("vectors-*.npz")
    whole = cached.read_bytes()
    for broken in (b"", b"not a zip", whole[:-40], whole[:90] + bytes([whole[90] ^ 1]) + whole[91:]):
        cached.write_bytes(broken)
        assert torch.equal(data.word_vectors().matrix, first.matrix)
        assert cached.read_bytes() == whole
    assert sum(str(cached) in record.getMessage() for record in caplog.records) == 4


def test_files_of_a_folder(tmp_path):
    assert files_in(tmp_path / "none") == {}
    write_jsonl(tmp_path / "dev.jsonl", documents(1))
    assert files_in(tmp_path) == {}
    (tmp_path / "train.csv.gz").touch()
    (tmp_path / "test.parquet").touch()
    names = {"train": "train.csv.gz", "val": "dev.jsonl", "test": "test.parquet"}
    assert files_in(tmp_path) == {split: tmp_path / name for split, name in names.items()}
    (tmp_path / "val.tsv").touch()
    with raises(UserError, "val.tsv", "dev.jsonl"):
        files_in(tmp_path)


def test_an_invalid_sample_is_rejected(tmp_path):
    with raises(UserError, "documents"):
        Sample(num_documents=2, num_labels=500, cache_dir=str(tmp_path))


def test_file_format_is_part_of_the_cache_key(tmp_path):
    text = "id\tlabels\ttext\n" + "".join(f"d{i}\tx\tword\n" for i in range(40))
    for name in ("train.txt", "train.tsv"):
        (tmp_path / name).write_text(text)
    as_lines, as_table = (TextFiles(str(tmp_path / n), cache_dir=str(tmp_path)) for n in ("train.txt", "train.tsv"))
    assert as_lines.space.reference_documents == 41  # its first line is a document
    assert as_table.space.reference_documents == 40
