"""The sparse format: every valid and every invalid form of a row."""

import gzip

import pytest

from datamodules import Bibtex, Delicious, SparseFiles, TextFiles
from datamodules.base import CorpusMissingError
from datamodules.corpora.sparse_files import SparseFormat
from datamodules.prepare.readers import BadRows, Document, Format, read_documents
from tests.support.errors import raises
from zoo.core.errors import UserError

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
    data = "".join(line + end for line in lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path, max_bad_rows=0, bad=None, reader=None):
    bad = bad or BadRows(max_bad_rows)
    return list(read_documents(path, Format(), bad, reader=reader or SparseFormat.beside(path).rows))


@pytest.mark.parametrize("name", ["train.xmc", "train.xmc.gz", "eurlex_train.txt", "anything"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_with_and_without_labels_and_features(tmp_path, name, end):
    assert read(put(tmp_path / name, LINES, end)) == DOCUMENTS


def test_the_extension_selects_the_format(tmp_path):
    path = put(tmp_path / "a.xmc.gz", LINES)
    assert list(read_documents(path, Format(), BadRows())) == DOCUMENTS
    bare = list(read_documents(path, Format("body", None), BadRows()))  # to be labelled
    assert [document.text for document in bare] == [document.text for document in DOCUMENTS]
    assert not any(document.labels for document in bare)


def test_empty_lines_count_up_to_the_number_of_rows(tmp_path):
    assert len(read(put(tmp_path / "a.xmc", [*LINES, "", " "]))) == 5
    assert len(read(put(tmp_path / "b.xmc", ["3 4 3", "", "0 1:1", ""]))) == 3


def test_names_are_read_from_files_beside(tmp_path):
    put(tmp_path / "labels.txt", ["first", "the second", "third"])
    put(tmp_path / "features.txt", ["a", "b", "0", "ü"])
    documents = read(put(tmp_path / "a.xmc", LINES))
    assert documents[0] == Document("", "a:1 ü:0.5", ["first", "third"])
    assert documents[2] == Document("", "b:2 0:-1e-3", [])


@pytest.mark.parametrize("wrong", ["b b", "a", "", "b:c", "[UNK]"])
def test_ambiguous_feature_names_are_replaced_by_numbers(tmp_path, wrong):
    put(tmp_path / "features.txt", ["a", wrong, "c", "d"])
    path = put(tmp_path / "a.xmc", LINES)
    assert read(path) == DOCUMENTS
    (line,) = SparseFormat.beside(path).features.report
    assert line.endswith("so features are named by their numbers")


@pytest.mark.parametrize("wrong", ["a", ""])
def test_ambiguous_label_names_are_replaced_by_numbers(tmp_path, wrong):
    put(tmp_path / "labels.txt", ["a", wrong, "c"])
    path = put(tmp_path / "a.xmc", LINES)
    assert read(path) == DOCUMENTS
    data = SparseFiles(str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.01)
    assert [line for line in data.prepared.report if "labels are named by their numbers" in line]


def test_names_of_another_corpus_are_rejected(tmp_path):
    put(tmp_path / "labels.txt", ["a", "b"])
    with raises(UserError, "labels.txt", 2, "a.xmc", 3):
        read(put(tmp_path / "a.xmc", LINES))


MISTAKES = {
    **{"0,x 1:1": "'x'", "0, 1:1": "''", "-1 1:1": "'-1'", "3 1:1": "3"},  # labels
    **{"0 4:1": "4", "0 -1:1": "'-1'", "0 1.0:1": "'1.0'", "0 ²:1": "'²'", "0 :1": "''"},  # features
    **{"0 1": "'1'", " 1": "'1'", "\udcff 1:1": "UTF-8"},
    **{f"0 1:{value}": repr(value) for value in ("", "x", "1:2", "nan", "-inf", "1e39", "1_0")},
}


@pytest.mark.parametrize("line", MISTAKES)
def test_bad_rows_are_reported_with_line_and_value(tmp_path, line):
    path = put(tmp_path / "a.xmc", ["3 4 3", "0 1:1", line, "1 2:1"])
    with raises(UserError, path, "line 3", MISTAKES[line]):
        read(path)
    bad = BadRows(1)
    assert [document.labels for document in read(path, bad=bad)] == [["0"], ["1"]]
    assert len(bad.report(path)) == 1


@pytest.mark.parametrize("header", ["0 1:1", "2 4", "2 4 x", "2 4 3 1", "2 4 -3", ""])
def test_a_bad_header_is_a_bad_row(tmp_path, header):
    path = put(tmp_path / "a.xmc", [header, "0 1:1", "7 9:1"])
    with raises(UserError, "line 1"):
        read(path)
    assert [document.text for document in read(path, max_bad_rows=1)] == ["1:1", "9:1"]  # nothing bounds them


@pytest.mark.parametrize(("announced", "count"), [(4, 3), (2, 3), (0, 3)])
def test_missing_and_surplus_rows_are_reported(tmp_path, announced, count):
    path = put(tmp_path / "a.xmc", [f"{announced} 4 3", "0 1:1", "1 2:1", "2 3:1"])
    with raises(UserError, "line 4", announced, count):
        read(path)


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


def test_names_from_other_files(tmp_path):
    corpus(tmp_path)
    labels, features = put(tmp_path / "y.txt", "vwxyz"), put(tmp_path / "x.txt", "abcdefgh")
    data = sparse(tmp_path, labels=str(labels), features=str(features), name="mine")
    assert (set(data.space.names), data.corpus_name) == (set("vwxyz"), "mine")
    assert "a" in data.prepared.vocabulary.words()
    numbered = sparse(tmp_path)
    assert data.prepared.folder.name.split("-")[-1] != numbered.prepared.folder.name.split("-")[-1]


@pytest.mark.parametrize("option", ["train", "test", "labels", "features"])
def test_missing_files_are_named_with_their_option(tmp_path, option):
    corpus(tmp_path)
    files = {"train": str(tmp_path / "train.xmc.gz")} | {option: str(tmp_path / "none")}
    with raises(UserError, tmp_path / "none", f"`{option}`"):
        SparseFiles(**files).find_corpus()


def test_tokenizers_are_rejected(tmp_path):
    corpus(tmp_path)
    with raises(UserError, "bert"):
        sparse(tmp_path, tokenizer="bert").space  # noqa: B018


def test_text_files_reject_sparse_features(tmp_path):
    corpus(tmp_path)
    with raises(UserError, "`data=SparseFiles`"):
        TextFiles(str(tmp_path / "train.xmc.gz")).find_corpus()


@pytest.mark.parametrize("kind", [Bibtex, Delicious])
def test_named_corpora_are_found_in_their_folder(tmp_path, monkeypatch, kind):
    with raises(CorpusMissingError, f"$ZOO_DATA/{kind.folder}"):
        kind(cache_dir=str(tmp_path / "cache")).find_corpus()
    assert kind(cache_dir=str(tmp_path / "cache"), on_missing="sample").is_sample
    corpus(tmp_path / kind.folder)
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    data = kind(cache_dir=str(tmp_path / "cache"))
    assert (data.corpus_name, data.is_sample, data.space.num_labels) == (kind.folder, False, 5)
    assert kind(root=str(tmp_path / kind.folder), cache_dir=str(tmp_path / "cache")).space == data.space


@pytest.mark.parametrize(("values", "expected"), [(("1", "3"), True), (("0.5", "0.5"), False)])
def test_counts_are_weighted_by_idf_and_other_features_are_not(tmp_path, values, expected):
    rows = [f"{i % 2} 0:{values[0]} 1:{values[1]}" for i in range(20)]
    path = put(tmp_path / "train.xmc", [f"{len(rows)} 2 2", *rows])
    settings = {"train": str(path), "cache_dir": str(tmp_path / "cache")}
    assert SparseFiles(**settings).space.idf is expected
    for given in (True, False):
        assert SparseFiles(**settings, idf=given).space.idf is given
