"""The cache of prepared corpora: what is damaged is prepared again, and what changed while it was read is refused."""

import shutil

import pytest

from datamodules import TextFiles
from datamodules.prepare.cache import MANIFEST
from datamodules.prepare.preparation import FILES, VOCABULARY
from datamodules.prepare.tokens import WordTokenizer
from tests.support.corpora import document, write_jsonl
from tests.support.errors import raises
from zoo.core.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_environment")
DOCUMENTS = [document(f"d{i}", ["even" if i % 2 == 0 else "odd"]) for i in range(40)]


def make(folder, documents=DOCUMENTS):
    train = write_jsonl(folder / "tiny" / "train.jsonl", documents)
    return TextFiles(train=str(train), cache_dir=str(folder / "cache"))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def delete(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_other(path):
    path.write_bytes((path.parent / VOCABULARY).read_bytes() if path.suffix == ".arrow" else b"{}")


DAMAGES = [flip, delete, empty, truncate, replace_by_folder, replace_by_other]


@pytest.mark.parametrize("file", [*FILES, MANIFEST])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_files_are_prepared_again(tmp_path, caplog, damage, file):
    prepared = make(tmp_path).prepared
    expected = content(prepared.folder)
    in_use = prepared.rows("train")  # memory-mapped
    before = in_use[[0, 1]].ids.tolist() if file != "train.arrow" else None
    if file == "train.arrow" and damage is not delete:
        del in_use
    damage(prepared.folder / file)
    caplog.clear()
    again = make(tmp_path)
    assert content(again.prepared.folder) == expected
    (line,) = [record.getMessage() for record in caplog.records if str(prepared.folder) in record.getMessage()]
    assert file in line or file == MANIFEST  # a digit in it may have changed
    if before is not None:
        assert in_use[[0, 1]].ids.tolist() == before
    caplog.clear()
    assert content(make(tmp_path).prepared.folder) == expected
    assert not caplog.records
    assert [path.name for path in (tmp_path / "cache").glob(".*")] == []


def test_a_file_or_the_folder_of_another_corpus_in_place_of_the_cache(tmp_path):
    folder = make(tmp_path).prepared.folder
    expected = content(folder)
    other = make(tmp_path / "other", DOCUMENTS[:20]).prepared.folder
    shutil.rmtree(folder)
    folder.write_text("a file")
    assert content(make(tmp_path).prepared.folder) == expected
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    assert content(make(tmp_path).prepared.folder) == expected


def test_unreadable_files_are_prepared_again(tmp_path, monkeypatch, caplog):
    folder = make(tmp_path).prepared.folder

    def refuse(file):
        raise PermissionError(13, "Permission denied", str(file))

    with monkeypatch.context() as patch:
        patch.setattr("datamodules.prepare.cache.crc32", lambda *args: refuse("x"))  # root may read everything
        patch.setattr("datamodules.prepare.preparation.write_manifest", lambda *args: None)
        assert make(tmp_path).space.reference_documents == 40
    assert any("Permission denied" in record.getMessage() for record in caplog.records)
    assert make(tmp_path).prepared.folder == folder


def test_a_cache_that_disappears_during_a_run(tmp_path):
    data = make(tmp_path)
    shutil.rmtree(data.prepared.folder)
    with raises(UserError, data.prepared.folder):
        data.prepared.rows("train")


def test_a_corpus_that_changes_while_it_is_read_is_not_cached(tmp_path, monkeypatch):
    data = make(tmp_path)
    index = WordTokenizer.index

    def rewrite(*args):
        make(tmp_path, DOCUMENTS[:10])
        return index(*args)

    with monkeypatch.context() as patch:
        patch.setattr(WordTokenizer, "index", rewrite)
        with raises(UserError, "tiny", "changed"):
            _ = data.prepared
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    assert make(tmp_path).space.reference_documents == 40


def test_labels_without_known_words_and_labels_alike_are_reported(tmp_path):
    wordless = {"id": "w", "text": "... ---", "labels": ["mute", "Odd"]}
    report = make(tmp_path, [*DOCUMENTS, wordless]).prepared.report
    assert [line for line in report if line.startswith("2 labels") and "known" in line]
    assert [line for line in report if line.startswith("1 ") and "case" in line]
