"""Conversion between formats: round trips, and reports of what a format cannot hold."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datamodules.prepare.readers import BadRows, Document, Format, read_documents
from datamodules.tools.convert import BREAKS, Converter
from datamodules.tools.locate import corpus_at
from tests.support.corpora import write_jsonl
from tests.support.errors import assert_message, raises
from zoo.core.errors import UserError

EMPTY = Document("", "", [])
DOCUMENTS = [
    Document("1", "Cocoa prices, cocoa!", ["cocoa", "Ähre"]),
    Document("b", "Ein Säckchen\tSalz\nund mehr", ["salt & sea"]),
    Document("", "no id", ["cocoa"]),
    Document("4", "", []),
]
TEXT_ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.bz2", ".parquet", ".txt", ".txt.gz", ".txt.bz2"]
SPARSE_ENDINGS = [".xmc", ".xmc.gz", ".xmc.bz2"]

plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
labels = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=","), min_size=1, max_size=6)
names = st.lists(labels.map(str.strip).filter(bool), max_size=3, unique=True)
documents = st.lists(st.builds(Document, ids, plain, names), min_size=1, max_size=6)
many = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, rows):
    write_jsonl(path, [{"id": d.id, "text": d.text, "labels": d.labels} for d in rows])
    return path


def read(path):
    return list(read_documents(path, Format(), BadRows()))


def convert(source, target, **options):
    """Convert one split; return the reported losses."""
    return Converter(**options).convert(corpus_at(source, Format(), max_bad_rows=0), {"train": target})


@pytest.mark.parametrize("ending", TEXT_ENDINGS)
def test_texts_survive_a_round_trip(tmp_path, ending):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    convert(source, tmp_path / f"out{ending}")
    convert(tmp_path / f"out{ending}", tmp_path / "back.jsonl")
    expected = [Document(d.id, BREAKS.sub(" ", d.text), d.labels) if "txt" in ending else d for d in DOCUMENTS]
    assert read(tmp_path / "back.jsonl") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.jsonl", f"out{ending}", "back.jsonl"])


@many
@given(documents)
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_random_documents_survive_a_round_trip(tmp_path, ending, rows):
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / f"out{ending}"
    assert convert(source, target, overwrite=True) == []
    assert read(target) == rows


@many
@given(documents)
def test_lines_lose_line_breaks_and_blank_rows_only(tmp_path, rows):
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.txt"
    convert(source, target, overwrite=True)
    whole = [Document(BREAKS.sub(" ", d.id), BREAKS.sub(" ", d.text), d.labels) for d in rows]
    assert read(target) == [
        d for d in whole if not f"{d.id}{','.join(d.labels)}{d.text}".encode().isspace() and d != EMPTY
    ]


@many
@given(documents)
def test_sparse_files_keep_labels_and_words(tmp_path_factory, rows):
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
def test_sparse_files_hold_word_counts(tmp_path, ending):
    lines = convert(write(tmp_path / "in.jsonl", DOCUMENTS), target := tmp_path / f"train{ending}")
    assert read(target) == [
        Document("", "cocoa:2 prices:1", ["cocoa", "Ähre"]),
        Document("", "ein:1 säckchen:1 salz:1 und:1 mehr:1", ["salt & sea"]),
        Document("", "no:1 id:1", ["cocoa"]),
        Document("", "", []),
    ]
    assert (tmp_path / "labels.txt").read_text("utf8").splitlines() == ["cocoa", "Ähre", "salt & sea"]
    assert lines == [f"{target}: 3 documents had ids, which .xmc files cannot represent"]


def test_splits_share_features_and_may_add_labels(tmp_path):
    convert(write(tmp_path / "in.jsonl", DOCUMENTS), tmp_path / "train.xmc.gz")
    before, features = read(tmp_path / "train.xmc.gz"), (tmp_path / "features.txt").read_bytes()
    rows = [Document("", "Salz und Cocoa und Pfeffer", ["new", "cocoa", "newer"])]
    lines = convert(write(tmp_path / "more.jsonl", rows), tmp_path / "test.xmc")
    assert [line.partition(": ")[2] for line in lines] == [
        "1 words of documents were not in features.txt and were left out",
        "2 new labels were added to labels.txt",
    ]
    assert read(tmp_path / "test.xmc") == [Document("", "cocoa:1 salz:1 und:2", ["cocoa", "new", "newer"])]
    assert read(tmp_path / "train.xmc.gz") == before
    assert (tmp_path / "features.txt").read_bytes() == features
    convert(tmp_path, folder_targets(tmp_path / "back", "jsonl")["train"])


def folder_targets(folder, ending):
    folder.mkdir(exist_ok=True)
    return {split: folder / f"{split}.{ending}" for split in ("train", "test")}


def test_features_without_names_keep_their_numbers(tmp_path):
    source = tmp_path / "train.txt"  # as the repository writes it
    source.write_text("3 5 4\n0,2 4:1 1:0.50\n3 0:2\n 1:1.5 3:0.25\n")
    expected = list(corpus_at(source, Format()).sources["train"].read(lambda _: None))
    targets = folder_targets(tmp_path / "out", "xmc")
    Converter().convert(corpus_at(source, Format()), {"train": targets["train"]})
    assert targets["train"].read_text() == source.read_text()
    texts = [("4:1 1:0.50", ["0", "2"]), ("0:2", ["3"]), ("1:1.5 3:0.25", [])]
    assert read(targets["train"]) == expected == [Document("", text, labels) for text, labels in texts]


def test_existing_names_are_not_overwritten(tmp_path):
    (tmp_path / "train.xmc").write_text("1 1 1\n0 0:1\n")
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    with raises(UserError, "train.xmc", "labels.txt"):
        convert(source, tmp_path / "test.xmc")
    (tmp_path / "labels.txt").write_text("a\na\n")
    (tmp_path / "features.txt").write_text("a\n")
    with raises(UserError, "labels.txt"):
        convert(source, tmp_path / "test.xmc")


def test_labels_that_contain_the_separator_are_rejected(tmp_path):
    source = write(tmp_path / "in.jsonl", [*DOCUMENTS, Document("5", "t", ["Paris, France"])])
    with raises(UserError, "'Paris, France'", "','", "target_label_sep"):
        convert(source, tmp_path / "out.txt.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    convert(source, target := tmp_path / "out.txt.gz", label_sep=";")
    assert gzip.decompress(target.read_bytes()).decode().splitlines()[-1] == "5\tParis, France\tt"


@pytest.mark.parametrize("ending", [".txt", ".xmc"])
def test_labels_of_two_lines_are_rejected(tmp_path, ending):
    source = write(tmp_path / "in.jsonl", [Document("5", "t", ["a\nb"])])
    with raises(UserError, repr("a\nb")):
        convert(source, tmp_path / f"out{ending}")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_invalid_feature_names_are_rejected(tmp_path):
    source = write(tmp_path / "in.jsonl", [Document("", "a:b:1", ["x"])])
    with raises(UserError, "'a:b'"):
        convert(source, tmp_path / "out.xmc", features=True)
    source = write(tmp_path / "in.jsonl", [Document("", "a b:0.50", ["x"])])
    convert(source, tmp_path / "out.xmc", features=True)
    assert read(tmp_path / "out.xmc") == [Document("", "a:1 b:0.50", ["x"])]


def test_losses_are_reported(tmp_path):
    source = write(tmp_path / "in.jsonl", [Document("5", "t\tu", ["a"]), Document("", " ", [])])
    lines = convert(source, target := tmp_path / "out.txt")
    assert len(lines) == 2
    for line in lines:
        assert_message(line, target, 1)


def test_invalid_targets_are_rejected(tmp_path):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    for name in ("out.csv", "out.parquet.gz", "out", "out.gz"):
        with raises(UserError, name):
            convert(source, tmp_path / name)
    with raises(UserError, tmp_path / "none"):
        convert(source, tmp_path / "none" / "out.jsonl")
    with raises(UserError, "overwrite"):
        convert(source, source)
    convert(source, source, overwrite=True)
    assert read(source) == DOCUMENTS


def test_bad_rows_leave_no_files(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a", "labels": []}\n{\n')
    with raises(UserError, "in.jsonl", "line 2"):
        convert(tmp_path / "in.jsonl", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_empty_corpus_becomes_an_empty_file(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    for ending in (".jsonl", ".txt.gz", ".parquet", ".xmc.gz"):
        convert(tmp_path / "in.jsonl", tmp_path / f"out{ending}")
        assert read(tmp_path / f"out{ending}") == []


def sparse_of(folder):
    return [(d.labels, d.text) for d in corpus_at(folder, Format()).sources["train"].read(lambda amount: None)]


def test_replacing_all_sparse_files_replaces_their_names(tmp_path):
    target = tmp_path / "out" / "train.xmc"
    target.parent.mkdir()
    convert(write(tmp_path / "one.jsonl", [Document("", "old words", ["x"])]), target)
    convert(write(tmp_path / "two.jsonl", [Document("", "new words here", ["y"])]), target, overwrite=True)
    assert sparse_of(target) == [(["y"], "new:1 words:1 here:1")]
    assert (target.parent / "labels.txt").read_text() == "y\n"
    convert(target, target, overwrite=True)  # onto itself: it keeps the names that it has
    assert sparse_of(target) == [(["y"], "new:1 words:1 here:1")]


@pytest.mark.parametrize("separator", ["", "\t", "a\nb"])
def test_invalid_separators_are_rejected(tmp_path, separator):
    source = write(tmp_path / "in.jsonl", DOCUMENTS)
    with raises(UserError, "target_label_sep"):
        convert(source, tmp_path / "out.txt", label_sep=separator)


def test_folders_of_texts_and_features_are_rejected(tmp_path):
    write(tmp_path / "train.jsonl", DOCUMENTS)
    (tmp_path / "test.xmc").write_text("1 1 1\n0 0:1\n")
    with raises(UserError, "test.xmc"):
        corpus_at(tmp_path, Format())
