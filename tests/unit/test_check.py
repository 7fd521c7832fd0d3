"""Each kind of thing that can be wrong with a corpus, and nothing where nothing is."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from datamodules.check import SHOWN, Check
from datamodules.locate import corpus_at
from datamodules.readers import Format

TEXTS = [" ".join(random.Random(i).choices([f"w{n}" for n in range(500)], k=60)) for i in range(40)]


def row(number, text=None, labels=("x",)):
    return {"id": str(number), "text": TEXTS[number] if text is None else text, "labels": list(labels)}


def put(folder, **splits):
    for split, rows in splits.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def problems(path, near=0.9):
    return {problem.kind: problem for problem in Check(corpus_at(path, Format()), near).run()}


def places(problem):
    return [[(place.split, place.line, place.id) for place in group] for group in problem.documents]


def test_nothing_is_wrong(tmp_path):
    assert problems(put(tmp_path, train=[row(0), row(1)], val=[row(2)], test=[row(3)])) == {}


def test_bad_rows_are_counted_with_lines_and_reasons(tmp_path):
    found = problems(put(tmp_path, train=[row(0), "{", "", *['{"text": 3, "labels": []}'] * 6, row(1)]))
    bad = found["bad rows"]
    assert bad.count == 7
    assert bad.details[0].startswith("line 2: broken JSON")
    assert bad.details[1] == "line 4: 'text' is of type int, not a string"
    assert len(bad.details) == 5
    assert str(tmp_path / "train.jsonl") in str(bad)


def test_lines_are_those_of_the_file(tmp_path):
    found = problems(put(tmp_path, train=[row(0), "{", "", row(1, labels=())]))
    assert places(found["without labels"]) == [[("train", 4, "1")]]


@pytest.mark.parametrize("near", [0.9, 0])
def test_gaps(tmp_path, near):
    train = [row(0), row(1, labels=()), row(2, text=" \n")]
    found = problems(put(tmp_path, train=train, test=[row(3, text=""), row(4, labels=())]), near)
    assert set(found) == {"empty texts", "without labels"}
    assert places(found["without labels"]) == [[("train", 2, "1")]]
    assert found["empty texts"].what == "test documents without text"


def test_repeated_and_shared_ids(tmp_path):
    train = [row(0), row(1), row(2) | {"id": "0"}, row(3) | {"id": "0"}]
    found = problems(put(tmp_path, train=train, test=[row(4) | {"id": "1"}, row(5) | {"id": ""}, row(6) | {"id": ""}]))
    assert set(found) == {"repeated ids", "shared ids"}
    assert places(found["repeated ids"]) == [
        [("train", 3, "0"), ("train", 1, "0")],
        [("train", 4, "0"), ("train", 1, "0")],
    ]
    assert places(found["shared ids"]) == [[("test", 1, "1"), ("train", 2, "1")]]


def test_repeated_and_shared_texts(tmp_path):
    same = {"text": TEXTS[0]}
    found = problems(put(tmp_path, train=[row(0), row(1) | same], val=[row(2) | same], test=[row(3), row(4) | same]))
    assert places(found["repeated texts"]) == [[("train", 2, "1"), ("train", 1, "0")]]
    checked = Check(corpus_at(tmp_path, Format())).run()
    assert [problem.what for problem in checked if problem.kind == "shared texts"] == [
        "val documents with the text of a train document",
        "test documents with the text of a train document",
        "test documents with the text of a val document",
    ]
    assert "near duplicates" not in found


def test_near_duplicates_are_true_and_can_be_turned_off(tmp_path):
    almost = TEXTS[7] + " and"  # 58 of 59 runs
    half = " ".join(TEXTS[8].split()[:30] + TEXTS[9].split()[:30])
    splits = {"train": [row(i) for i in range(20)], "test": [row(20, text=half), row(21, text=almost), row(22)]}
    put(tmp_path, **splits)
    found = problems(tmp_path)
    assert set(found) == {"near duplicates"}
    assert places(found["near duplicates"]) == [[("test", 2, "21"), ("train", 8, "7")]]
    assert problems(tmp_path, near=0) == {}
    assert problems(tmp_path, near=0.99) == {}
    assert problems(tmp_path, near=0.3)["near duplicates"].count == 2


def test_labels(tmp_path):
    train = [row(0, labels=["Sea fish", "b"]), row(1, labels=["sea  fish"])]
    found = problems(put(tmp_path, train=train, test=[row(2, labels=["B", "c", "d"])]))
    assert found["unseen labels"].details == ["B", "c", "d"]
    assert found["labels alike"].details == ["'Sea fish' = 'sea  fish'", "'b' = 'B'"]


def test_a_few_examples_of_many(tmp_path):
    found = problems(put(tmp_path, train=[row(i, labels=()) for i in range(30)] + [row(30)]))
    assert found["without labels"].count == 30
    assert len(found["without labels"].documents) == SHOWN
    assert str(found["without labels"]).startswith("30 train documents without labels: train line 1 (id 0); ")
    assert str(found["without labels"]).endswith("; ...")


def test_a_split_without_documents(tmp_path):
    assert set(problems(put(tmp_path, train=[row(0)], test=[]))) == {"no documents"}


def test_features(tmp_path):
    features = " ".join(f"{i}:1" for i in range(40))
    train = f"3 50 2\n0 {features}\n1 1:2\n\n"
    test = f"2 50 2\n0 {features} 49:1\n1 1:2\n"
    for split, text in {"train": train, "test": test}.items():
        (tmp_path / f"{split}.xmc.gz").write_bytes(gzip.compress(text.encode()))
    found = problems(tmp_path)
    assert places(found["near duplicates"]) == [[("test", 2, ""), ("train", 2, "")]]
    assert places(found["shared texts"]) == [[("test", 3, ""), ("train", 3, "")]]
    assert places(found["empty texts"]) == [[("train", 4, "")]]
    assert found["empty texts"].what == "train documents without features"
