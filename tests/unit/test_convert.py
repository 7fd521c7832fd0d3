"""Conversion: what one format holds comes back from another, and what it cannot hold is told."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datamodules.convert import BREAKS, Converter
from datamodules.errors import UserError
from datamodules.locate import corpus_at
from datamodules.readers import BadRows, Document, Format, read_documents

EMPTY = Document("", "", [])
DOCUMENTS = [
    Document("1", "Cocoa prices, cocoa!", ["cocoa", "Ähre"]),
    Document("b", "Ein Säckchen\tSalz\nund mehr", ["salt & sea"]),
    Document("", "no id", ["cocoa"]),
    Document("4", "", []),
]
TEXT_ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.bz2", ".parquet", ".txt", ".txt.gz", ".txt.bz2"]
SPARSE_ENDINGS = [".xmc", ".xmc.gz", ".xmc.bz2"]

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
labels = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=","), min_size=1, max_size=6)
names = st.lists(labels.map(str.strip).filter(bool), max_size=3, unique=True)
documents = st.lists(st.builds(Document, plain, plain, names), min_size=1, max_size=6)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, rows):
    path.write_text("".join(json.dumps({"id": d.id, "text": d.text, "labels": d.labels}) + "\n" for d in rows))
    return path


def read(path):
    return list(read_documents(path, Format(), BadRows()))


def convert(source, target, **options):
    """Without a word of progress; returns the remarks."""
    return Converter(**options).convert(corpus_at(source, Format(), max_bad_rows=0), {"train": target})


@pytest.mark.parametrize("ending", TEXT_ENDINGS)
def test_texts_come_back(tmp_path, ending):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    convert(source, tmp_path / f"out{ending}")
    convert(tmp_path / f"out{ending}", tmp_path / "back.jsonl")
    expected = [Document(d.id, BREAKS.sub(" ", d.text), d.labels) if "txt" in ending else d for d in DOCUMENTS]
    assert read(tmp_path / "back.jsonl") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.jsonl", f"out{ending}", "back.jsonl"])


@many
@given(documents)
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_any_document_comes_back(tmp_path, ending, rows):
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / f"out{ending}"
    assert convert(source, target, overwrite=True) == []
    assert read(target) == rows


@many
@given(documents)
def test_lines_lose_nothing_but_breaks_and_blank_rows(tmp_path, rows):
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.txt"
    convert(source, target, overwrite=True)
    whole = [Document(BREAKS.sub(" ", d.id), BREAKS.sub(" ", d.text), d.labels) for d in rows]
    assert read(target) == [
        d for d in whole if not f"{d.id}{','.join(d.labels)}{d.text}".encode().isspace() and d != EMPTY
    ]


@many
@given(documents)
def test_labels_and_words_come_back_from_features(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("sparse")
    convert(write(folder / "in.jsonl", rows), folder / "out.xmc.gz")
    found = read(folder / "out.xmc.gz")
    assert [sorted(d.labels) for d in found] == [sorted(d.labels) for d in rows]
    convert(folder / "out.xmc.gz", folder / "text.jsonl")
    again = folder / "again"
    again.mkdir()
    convert(folder / "text.jsonl", again / "out.xmc", features=True)
    assert [sorted(d.text.split()) for d in read(again / "out.xmc")] == [sorted(d.text.split()) for d in found]


@pytest.mark.parametrize("ending", SPARSE_ENDINGS)
def test_words_are_counted(tmp_path, ending):
    lines = convert(write(tmp_path / "in.jsonl", DOCUMENTS), target := tmp_path / f"train{ending}")
    assert read(target) == [
        Document("", "cocoa:2 prices:1", ["cocoa", "Ähre"]),
        Document("", "ein:1 säckchen:1 salz:1 und:1 mehr:1", ["salt & sea"]),
        Document("", "no:1 id:1", ["cocoa"]),
        Document("", "", []),
    ]
    assert (tmp_path / "labels.txt").read_text("utf8").splitlines() == ["cocoa", "Ähre", "salt & sea"]
    assert lines == [f"{target}: 3 documents had ids, which .xmc cannot hold"]


def test_another_split_has_the_same_features_and_may_add_labels(tmp_path):
    convert(write(tmp_path / "in.jsonl", DOCUMENTS), tmp_path / "train.xmc.gz")
    before, features = read(tmp_path / "train.xmc.gz"), (tmp_path / "features.txt").read_bytes()
    rows = [Document("", "Salz und Cocoa und Pfeffer", ["new", "cocoa", "newer"])]
    lines = convert(write(tmp_path / "more.jsonl", rows), tmp_path / "test.xmc")
    assert [line.partition(": ")[2] for line in lines] == [
        "1 words of documents were not in features.txt and are left out",
        "2 labels were new and are now in labels.txt",
    ]
    assert read(tmp_path / "test.xmc") == [Document("", "cocoa:1 salz:1 und:2", ["cocoa", "new", "newer"])]
    assert read(tmp_path / "train.xmc.gz") == before
    assert (tmp_path / "features.txt").read_bytes() == features
    convert(tmp_path, folder_targets(tmp_path / "back", "jsonl")["train"])


def folder_targets(folder, ending):
    folder.mkdir(exist_ok=True)
    return {split: folder / f"{split}.{ending}" for split in ("train", "test")}


def test_numbers_stay_where_features_have_no_names(tmp_path):
    source = tmp_path / "train.txt"  # as the repository writes it
    source.write_text("3 5 4\n0,2 4:1 1:0.50\n3 0:2\n 1:1.5 3:0.25\n")
    expected = list(corpus_at(source, Format()).sources["train"].read(lambda _: None))
    targets = folder_targets(tmp_path / "out", "xmc")
    Converter().convert(corpus_at(source, Format()), {"train": targets["train"]})
    assert targets["train"].read_text() == source.read_text()
    assert (
        read(targets["train"])
        == expected
        == [
            Document("", "4:1 1:0.50", ["0", "2"]),
            Document("", "0:2", ["3"]),
            Document("", "1:1.5 3:0.25", []),
        ]
    )


def test_names_of_others_files_stay_untouched(tmp_path):
    (tmp_path / "train.xmc").write_text("1 1 1\n0 0:1\n")
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    with pytest.raises(UserError, match=r"has train\.xmc but no labels\.txt"):
        convert(source, tmp_path / "test.xmc")
    (tmp_path / "labels.txt").write_text("a\na\n")
    (tmp_path / "features.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"labels\.txt: some names repeat"):
        convert(source, tmp_path / "test.xmc")


def test_the_same_documents_make_the_same_file(tmp_path):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        convert(source, tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_label_with_the_separator_is_named_and_nothing_is_written(tmp_path):
    source = write(tmp_path / "in.jsonl", [*DOCUMENTS, Document("5", "t", ["Paris, France"])])
    with pytest.raises(UserError, match=r"label 'Paris, France' contains ','.*--target_label_sep"):
        convert(source, tmp_path / "out.txt.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    convert(source, target := tmp_path / "out.txt.gz", label_sep=";")
    assert gzip.decompress(target.read_bytes()).decode().splitlines()[-1] == "5\tParis, France\tt"


@pytest.mark.parametrize(("ending", "words"), [(".txt", "tab or a line break"), (".xmc", "line break")])
def test_a_label_of_two_lines(tmp_path, ending, words):
    source = write(tmp_path / "in.jsonl", [Document("5", "t", ["a\nb"])])
    with pytest.raises(UserError, match=words):
        convert(source, tmp_path / f"out{ending}")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_feature_that_its_file_cannot_hold(tmp_path):
    source = write(tmp_path / "in.jsonl", [Document("", "a:b:1", ["x"])])
    with pytest.raises(UserError, match=r"feature 'a:b' contains a colon"):
        convert(source, tmp_path / "out.xmc", features=True)
    source = write(tmp_path / "in.jsonl", [Document("", "a b:0.50", ["x"])])
    convert(source, tmp_path / "out.xmc", features=True)
    assert read(tmp_path / "out.xmc") == [Document("", "a:1 b:0.50", ["x"])]


def test_what_lines_cannot_hold_is_told(tmp_path):
    source = write(tmp_path / "in.jsonl", [Document("5", "t\tu", ["a"]), Document("", " ", [])])
    lines = convert(source, target := tmp_path / "out.txt")
    assert lines == [
        f"{target}: 1 documents had tabs or line breaks, which are spaces now",
        f"{target}: 1 documents without id, labels and text are left out: a blank line is none",
    ]


def test_targets_that_cannot_be(tmp_path):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    for name in ("out.csv", "out.parquet.gz", "out", "out.gz"):
        with pytest.raises(UserError, match="its ending must be"):
            convert(source, tmp_path / name)
    with pytest.raises(UserError, match="not a file in an existing folder"):
        convert(source, tmp_path / "none" / "out.jsonl")
    with pytest.raises(UserError, match="--overwrite"):
        convert(source, source)
    convert(source, source, overwrite=True)
    assert read(source) == DOCUMENTS


def test_bad_rows_stop_it_and_leave_nothing(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a", "labels": []}\n{\n')
    with pytest.raises(UserError, match="1 bad row"):
        convert(tmp_path / "in.jsonl", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_nothing_becomes_an_empty_file(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    for ending in (".jsonl", ".txt.gz", ".parquet", ".xmc.gz"):
        convert(tmp_path / "in.jsonl", tmp_path / f"out{ending}")
        assert read(tmp_path / f"out{ending}") == []


def sparse_of(folder):
    return [(d.labels, d.text) for d in corpus_at(folder, Format()).sources["train"].read(lambda amount: None)]


def test_replacing_the_only_sparse_file_begins_anew(tmp_path):
    target = tmp_path / "out" / "train.xmc"
    target.parent.mkdir()
    convert(write(tmp_path / "one.jsonl", [Document("", "old words", ["x"])]), target)
    convert(write(tmp_path / "two.jsonl", [Document("", "new words here", ["y"])]), target, overwrite=True)
    assert sparse_of(target) == [(["y"], "new:1 words:1 here:1")]
    assert (target.parent / "labels.txt").read_text() == "y\n"
    convert(target, target, overwrite=True)  # onto itself: it keeps the names that it has
    assert sparse_of(target) == [(["y"], "new:1 words:1 here:1")]


def test_replacing_all_splits_begins_anew_too(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    targets = {"train": folder / "train.xmc", "test": folder / "test.xmc"}
    for words, label in (("old", "x"), ("new", "y")):
        source = tmp_path / words
        source.mkdir()
        for split in targets:
            write(source / f"{split}.jsonl", [Document("", f"{words} {split}", [label])])
        Converter(overwrite=True).convert(corpus_at(source, Format()), targets)
    assert sparse_of(folder) == [(["y"], "new:1 train:1")]
    assert (folder / "features.txt").read_text() == "new\ntrain\n"


def test_more_names_than_labels_are_those_of_another_split(tmp_path):
    write(tmp_path / "a.jsonl", [Document("", "w", ["x"])])
    write(tmp_path / "b.jsonl", [Document("", "w", ["z"])])
    convert(tmp_path / "a.jsonl", tmp_path / "train.xmc")
    convert(tmp_path / "b.jsonl", tmp_path / "test.xmc")
    assert (tmp_path / "labels.txt").read_text() == "x\nz\n"
    assert sparse_of(tmp_path / "train.xmc") == [(["x"], "w:1")]  # its header still says one label


@pytest.mark.parametrize("separator", ["", "\t", "a\nb"])
def test_a_separator_that_ends_columns_is_refused(tmp_path, separator):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    with pytest.raises(UserError, match="--target_label_sep must be something, and no tab or line break"):
        convert(source, tmp_path / "out.txt", label_sep=separator)


def test_a_folder_with_texts_and_features_is_refused(tmp_path):
    write(tmp_path / "train.jsonl", DOCUMENTS)
    (tmp_path / "test.xmc").write_text("1 1 1\n0 0:1\n")
    with pytest.raises(UserError, match=r"test.xmc has features and other files have texts"):
        corpus_at(tmp_path, Format())
