"""Corpus statistics: by hand on a small corpus, the known table on real ones, and against published numbers."""

import os
import tracemalloc
from pathlib import Path

import pytest

from datamodules import Reuters
from datamodules.prepare.readers import Format
from datamodules.tools.locate import corpus_at
from datamodules.tools.statistics import Published, Statistics, compare, count_corpus, of_prepared
from tests.support.corpora import write_jsonl
from tests.support.errors import assert_message

ROWS = {
    "train": [("a b c", ["x", "y"]), ("a", ["x"]), ("", []), ("a  b\nc\td", ["x", "z", "y"])],
    "val": [("a", ["x"])],
    "test": [("a b", ["x", "new"]), ("c", ["y"])],
}


def put(folder, rows=ROWS):
    for split, documents in rows.items():
        write_jsonl(folder / f"{split}.jsonl", [{"text": text, "labels": labels} for text, labels in documents])
    return folder


def counted(path):
    return count_corpus(corpus_at(path, Format()))


def test_all_statistics_by_hand(tmp_path):
    found = counted(put(tmp_path))
    assert found == Statistics(
        documents={"train": 4, "val": 1, "test": 2},
        labels=4,
        labels_in_training=3,
        labels_per_document=6 / 4,
        most_labels=3,
        documents_per_label=6 / 3,
        words_per_document=8 / 4,
        few=3,
        single=1,
        unlabelled=1,
    )
    assert ("training documents per label", "2.00") in found.lines()


def test_a_single_file_is_train(tmp_path):
    assert counted(put(tmp_path) / "test.jsonl").documents == {"train": 2}


def test_frequency_classes(tmp_path):
    counts = {"one": 1, "twenty": 20, "twenty-one": 21, "hundred": 100, "more": 101}
    rows = [("w", [name for name, count in counts.items() if i < count]) for i in range(101)]
    found = counted(put(tmp_path, {"train": rows}))
    assert (found.single, found.few, found.medium, found.many) == (1, 2, 2, 1)


def test_features_count_as_words(tmp_path):
    (tmp_path / "train.xmc").write_text("2 3 2\n0,1 0:1 2:0.5\n1 1:2\n")
    found = counted(tmp_path)
    assert found.has_features
    assert (found.words_per_document, found.labels) == (1.5, 2)
    assert "features per document" in dict(found.lines())


def test_an_empty_corpus(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    assert counted(tmp_path) == Statistics(documents={"train": 0})


def test_memory_does_not_grow_with_the_documents(tmp_path):
    peaks = []
    for size in (1_000, 4_000):
        put(tmp_path, {"train": [(f"some words of a document {i} " * 10, ["x", "y"]) for i in range(size)]})
        corpus = corpus_at(tmp_path, Format())
        tracemalloc.start()
        count_corpus(corpus)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "documents", "labels", "seen", "per_document", "words", "classes"),
    [
        ("eurlex57k", [45_000, 6_000, 6_000], 4_271, 4_108, 5.07, 391, (2_866, 802, 440)),
        ("reuters", [7_770, 3_019], 90, 90, 1.23, 131, (47, 27, 16)),
        ("bibtex", [4_880, 2_515], 159, 159, 2.38, 68, (0, 132, 27)),
        ("delicious", [12_920, 3_185], 983, 983, 19.05, 19, (3, 546, 434)),
    ],
)
def test_real_corpora(name, documents, labels, seen, per_document, words, classes):
    folder = Path(os.environ.get("ZOO_DATA", "/nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"$ZOO_DATA has no {name}")
    found = counted(folder)
    assert list(found.documents.values()) == documents
    assert (found.labels, found.labels_in_training) == (labels, seen)
    assert (round(found.labels_per_document, 2), round(found.words_per_document)) == (per_document, words)
    assert (found.few, found.medium, found.many) == classes
    assert found.unlabelled == (10 if name == "delicious" else 0)


FOUND = Statistics(
    {"train": 15_449, "test": 3_865}, 3_956, 3_800, 5.3049, 24, 20.7, 1200.0, few=3_000, medium=700, many=256
)


def test_the_closest_published_row_is_compared():
    rows = (
        Published("HTTN, Table 1", 13_905, 3_865, 3_714, 5.32),
        Published("ME-XML, Table 1", 15_539, 3_865, 3_956, 5.30, classes=(3_000, 640, 256)),
    )
    best, lines = compare(FOUND, rows)
    assert best is rows[1]
    assert lines == [
        "ME-XML, Table 1 has 15,539 training documents, this corpus 15,449",
        "ME-XML, Table 1 has 640 labels with 21 to 100 training documents, this corpus 700",
    ]


def test_equal_numbers_are_not_reported():
    row = Published("a paper", 15_449, 3_865, 3_956, 5.30, 20.7)
    assert compare(FOUND, [row]) == (row, [])
    seen_only = Published("another", 15_449, 3_865, 3_800)
    assert compare(FOUND, [seen_only]) == (seen_only, [])
    assert compare(FOUND, []) is None
    with_val = Published("a third", 15_449, 3_865, 3_956, val=5)
    assert compare(FOUND, [with_val])[1] == ["a third has 5 validation documents, this corpus 0"]


class Known(Reuters):
    published = (Published("A paper", 40, 4, 2, 1.25), Published("Another", 99, 9, 9))


@pytest.fixture
def known(tmp_path):
    rows = [(f"word {i}", ["x", "y"][: 1 + (i % 4 == 0)]) for i in range(40)]
    folder = put(tmp_path, {"train": rows, "test": rows[:4]})

    def made(**settings):
        return Known(root=str(folder), cache_dir=str(tmp_path / "cache"), **settings)

    return made


def test_a_prepared_corpus_is_compared_with_published_numbers(known, capsys):
    data = known()  # part of train is split off, and counts all the same
    assert len(data.prepared.rows("val")) > 0
    assert data.deviations() == []
    data.published = (Published("A paper", 41, 4, 3, 1.25),)
    data.setup("fit")
    documents, labels = [line for line in capsys.readouterr().err.splitlines() if "A paper" in line]
    assert_message(documents, "reuters", 41, 40)
    assert_message(labels, "reuters", 3, 2)


def test_subsets_and_the_sample_are_not_compared(known):
    data = known(limit_train=10)
    data.published = (Published("A paper", 41, 4, 3),)
    assert data.deviations() == []
    sample = Known(on_missing="sample", download=False, cache_dir=str(data.cache_dir))
    assert sample.is_sample
    assert sample.deviations() == []


def test_statistics_of_a_prepared_corpus_equal_counted_ones(known):
    data = known()
    again, counted = of_prepared(data.prepared, has_val=False), count_corpus(data.corpus)
    for name in ("documents", "labels", "labels_in_training", "labels_per_document", "documents_per_label", "single"):
        assert getattr(again, name) == getattr(counted, name)
    assert (again.few, again.medium, again.many) == (counted.few, counted.medium, counted.many)
