"""The sparse format: every way to write a row, and every way to write it wrongly."""

from __future__ import annotations

import gzip

import pytest

from datamodules import Bibtex, Delicious, SparseFiles, TextFiles
from datamodules.base import CorpusMissingError
from datamodules.errors import UserError
from datamodules.readers import BadRows, Document, Format, read_documents
from datamodules.xmc import SparseFormat, is_feature

pytestmark = pytest.mark.usefixtures("clean_environment")

LINES = ["5 4 3", "0,2 0:1 3:0.5", " 1:2", "1:2 2:-1e-3", "1", ""]
DOCUMENTS = [
    Document("", "0:1 3:0.5", ["0", "2"]),
    Document("", "1:2", []),
    Document("", "1:2 2:-1e-3", []),
    Document("", "", ["1"]),
    Document("", "", []),
]


def put(path, lines, end="\n"):
    path.parent.mkdir(exist_ok=True, parents=True)
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path, max_bad_rows=0, bad=None, reader=None):
    bad = bad or BadRows(max_bad_rows)
    return list(read_documents(path, Format(), bad, reader=reader or SparseFormat.beside(path).rows))


@pytest.mark.parametrize("name", ["train.xmc", "train.xmc.gz", "eurlex_train.txt", "anything"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_with_and_without_labels_and_features(tmp_path, name, end):
    assert read(put(tmp_path / name, LINES, end)) == DOCUMENTS


def test_the_extension_tells_the_format_too(tmp_path):
    path = put(tmp_path / "a.xmc.gz", LINES)
    assert list(read_documents(path, Format(), BadRows())) == DOCUMENTS
    bare = list(read_documents(path, Format("body", None), BadRows()))  # to be labelled
    assert [document.text for document in bare] == [document.text for document in DOCUMENTS]
    assert not any(document.labels for document in bare)


def test_empty_lines_count_up_to_the_number_of_rows_and_no_further(tmp_path):
    assert len(read(put(tmp_path / "a.xmc", [*LINES, "", " "]))) == 5
    assert len(read(put(tmp_path / "b.xmc", ["3 4 3", "", "0 1:1", ""]))) == 3


def test_names_lie_beside_the_file(tmp_path):
    put(tmp_path / "labels.txt", ["first", "the second", "third"])
    put(tmp_path / "features.txt", ["a", "b", "0", "ü"])
    documents = read(put(tmp_path / "a.xmc", LINES))
    assert documents[0] == Document("", "a:1 ü:0.5", ["first", "third"])
    assert documents[2] == Document("", "b:2 0:-1e-3", [])


@pytest.mark.parametrize("wrong", ["b b", "a", "", "b:c", "[UNK]"])
def test_names_of_features_that_cannot_be_told_apart_give_way_to_numbers(tmp_path, wrong):
    put(tmp_path / "features.txt", ["a", wrong, "c", "d"])
    path = put(tmp_path / "a.xmc", LINES)
    assert read(path) == DOCUMENTS
    (line,) = SparseFormat.beside(path).features.report
    assert line.endswith("so numbers stand for all features")


@pytest.mark.parametrize("wrong", ["a", ""])
def test_names_of_labels_that_repeat_or_are_empty_give_way_to_numbers(tmp_path, wrong):
    put(tmp_path / "labels.txt", ["a", wrong, "c"])
    path = put(tmp_path / "a.xmc", LINES)
    assert read(path) == DOCUMENTS
    data = SparseFiles(str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.01)
    assert [line for line in data.prepared.report if "numbers stand for all labels" in line]


def test_names_of_another_corpus_are_refused(tmp_path):
    put(tmp_path / "labels.txt", ["a", "b"])
    with pytest.raises(UserError, match=r"labels\.txt has 2 names, but .*a\.xmc has 3 labels: name the right file"):
        read(put(tmp_path / "a.xmc", LINES))


def test_what_makes_a_name_of_a_feature():
    assert all(map(is_feature, ["a", "0", "ü-1", ".net"]))
    assert not any(map(is_feature, ["", "a b", "a\u00a0b", "a:b", "[PAD]", "[VALUES]"]))


MISTAKES = {
    "0,x 1:1": "label 'x' is not a number",
    "0, 1:1": "label '' is not a number",
    "-1 1:1": "label '-1' is not a number",
    "3 1:1": "label 3 is out of range: there are 3, numbered from 0",
    "0 4:1": "feature 4 is out of range: there are 4, numbered from 0",
    "0 -1:1": "feature '-1' is not a number",
    "0 1.0:1": "feature '1.0' is not a number",
    "0 ²:1": "feature '²' is not a number",
    "0 :1": "feature '' is not a number",
    "0 1": "'1' is not feature:value",
    " 1": "'1' is not feature:value",
    "0 1:": "feature 1 has the value '', which is not a number",
    "0 1:x": "feature 1 has the value 'x', which is not a number",
    "0 1:1:2": "feature 1 has the value '1:2', which is not a number",
    "0 1:nan": "feature 1 has the value 'nan', which is not a number",
    "0 1:-inf": "feature 1 has the value '-inf', which is not a number",
    "0 1:1e39": "feature 1 has the value '1e39', which is not a number",
    "0 1:1_0": "feature 1 has the value '1_0', which is not a number",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_bad_row_is_named_by_line_and_reason(tmp_path, line):
    path = put(tmp_path / "a.xmc", ["3 4 3", "0 1:1", line, "1 2:1"])
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: 1 bad row, at line 3 (line 3: {MISTAKES[line]})")
    bad = BadRows(1)
    assert [document.labels for document in read(path, bad=bad)] == [["0"], ["1"]]
    assert len(bad.report(path)) == 1


def test_bytes_that_are_no_text_are_a_bad_row(tmp_path):
    path = tmp_path / "a.xmc"
    path.write_bytes(b"2 4 3\n0 1:1\n\xff 1:1\n")
    with pytest.raises(UserError, match="line 3: invalid UTF-8"):
        read(path)


@pytest.mark.parametrize("header", ["0 1:1", "2 4", "2 4 x", "2 4 3 1", "2 4 -3", ""])
def test_a_bad_header_is_a_bad_row(tmp_path, header):
    path = put(tmp_path / "a.xmc", [header, "0 1:1", "7 9:1"])
    with pytest.raises(UserError, match="line 1: the first line must be three numbers: rows, features and labels"):
        read(path)
    assert [document.text for document in read(path, max_bad_rows=1)] == ["1:1", "9:1"]  # nothing bounds them


@pytest.mark.parametrize(("announced", "count"), [(4, 3), (2, 3), (0, 3)])
def test_rows_that_are_missing_or_too_many_are_told(tmp_path, announced, count):
    path = put(tmp_path / "a.xmc", [f"{announced} 4 3", "0 1:1", "1 2:1", "2 3:1"])
    with pytest.raises(UserError, match=f"line 4: the header announces {announced} rows, the file has {count}"):
        read(path)


# --- datamodules


def corpus(folder, size=30, labels=5, features=8, names=False):
    rows = [f"{i % labels},{(i + 1) % labels} {i % features}:0.5 {(i * 3 + 1) % features}:{i + 1}" for i in range(size)]
    put(folder / "train.xmc.gz", [f"{size} {features} {labels}", *rows])
    put(folder / "test.xmc.gz", [f"6 {features} {labels}", *rows[:6]])
    if names:
        put(folder / "labels.txt", [f"L{i}" for i in range(labels)])
        put(folder / "features.txt", [f"f{i}" for i in range(features)])


def sparse(folder, **kwargs):
    files = {split: str(folder / f"{split}.xmc.gz") for split in ("train", "test")}
    return SparseFiles(**files, cache_dir=str(folder / "cache"), batch_size=4, **kwargs)


@pytest.mark.parametrize("names", [False, True])
def test_sparse_files_give_ids_and_values(tmp_path, names):
    corpus(tmp_path, names=names)
    data = sparse(tmp_path, max_length=1)  # it cuts texts, no features
    assert set(data.space.names) == {f"L{i}" if names else str(i) for i in range(5)}
    assert data.corpus_name == tmp_path.name
    words = {number: word for word, number in data.prepared.vocabulary.words().items()}
    (batch,) = data.test_dataloader()
    found = {
        tuple(sorted((words[i], v) for i, v in zip(ids[mask].tolist(), values[mask].tolist(), strict=True)))
        for ids, mask, values in zip(batch.ids, batch.mask, batch.values, strict=True)
    }
    f = "f" if names else ""
    assert {((f"{f}0", 0.5), (f"{f}1", 1.0)), ((f"{f}1", 0.5), (f"{f}4", 2.0))} <= found
    assert (batch.values[~batch.mask] == 0).all()


def test_names_from_elsewhere(tmp_path):
    corpus(tmp_path)
    labels, features = put(tmp_path / "y.txt", "vwxyz"), put(tmp_path / "x.txt", "abcdefgh")
    data = sparse(tmp_path, labels=str(labels), features=str(features), name="mine")
    assert (set(data.space.names), data.corpus_name) == (set("vwxyz"), "mine")
    assert "a" in data.prepared.vocabulary.words()
    numbered = sparse(tmp_path)
    assert data.prepared.folder.name.split("-")[-1] != numbered.prepared.folder.name.split("-")[-1]


@pytest.mark.parametrize("option", ["train", "test", "labels", "features"])
def test_a_missing_file_is_named_with_its_option(tmp_path, option):
    corpus(tmp_path)
    files = {"train": str(tmp_path / "train.xmc.gz")} | {option: str(tmp_path / "none")}
    with pytest.raises(UserError, match=rf"no such file: .*none \(--data\.{option}\)"):
        SparseFiles(**files).find_corpus()


def test_a_tokenizer_is_refused(tmp_path):
    corpus(tmp_path)
    with pytest.raises(UserError, match="has features and no texts, which the tokenizer bert cannot read"):
        sparse(tmp_path, tokenizer="bert").space  # noqa: B018


def test_files_of_texts_do_not_take_features(tmp_path):
    corpus(tmp_path)
    with pytest.raises(UserError, match="read it with --data SparseFiles"):
        TextFiles(str(tmp_path / "train.xmc.gz")).find_corpus()


@pytest.mark.parametrize("kind", [Bibtex, Delicious])
def test_named_corpora_are_found_in_their_folder(tmp_path, monkeypatch, kind):
    with pytest.raises(CorpusMissingError, match=f"no corpus {kind.folder}: .*{kind.folder}, or name a folder"):
        kind(cache_dir=str(tmp_path / "cache")).find_corpus()
    assert kind(cache_dir=str(tmp_path / "cache"), on_missing="sample").is_sample
    corpus(tmp_path / kind.folder)
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    data = kind(cache_dir=str(tmp_path / "cache"))
    assert (data.corpus_name, data.is_sample, data.space.num_labels) == (kind.folder, False, 5)
    assert kind(root=str(tmp_path / kind.folder), cache_dir=str(tmp_path / "cache")).space == data.space
