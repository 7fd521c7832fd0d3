"""Every kind of problem that a corpus can have, and none in a clean corpus."""

import gzip
import random

from datamodules.prepare.readers import Format
from datamodules.tools.check import Check
from datamodules.tools.locate import corpus_at
from tests.support.corpora import write_jsonl
from tests.support.errors import assert_message

TEXTS = [" ".join(random.Random(i).choices([f"w{n}" for n in range(500)], k=60)) for i in range(40)]


def row(number, text=None, labels=("x",)):
    return {"id": str(number), "text": TEXTS[number] if text is None else text, "labels": list(labels)}


def put(folder, **splits):
    for split, rows in splits.items():
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def problems(path, near=0.9):
    return {problem.kind: problem for problem in Check(corpus_at(path, Format()), near).run()}


def places(problem):
    return [[(place.split, place.line, place.id) for place in group] for group in problem.documents]


def test_a_clean_corpus_has_no_problems(tmp_path):
    assert problems(put(tmp_path, train=[row(0), row(1)], val=[row(2)], test=[row(3)])) == {}


def test_bad_rows_have_lines_and_reasons(tmp_path):
    found = problems(put(tmp_path, train=[row(0), "{", "", *['{"text": 3, "labels": []}'] * 6, row(1)]))
    bad = found["bad rows"]
    assert bad.count == 7
    assert_message(bad.details[0], "line 2", "JSON")
    assert_message(bad.details[1], "line 4", "'text'", "int")
    assert len(bad.details) == 5
    assert str(tmp_path / "train.jsonl") in str(bad)


def test_empty_texts_and_missing_labels(tmp_path):
    train = [row(0), "", row(1, labels=()), row(2, text=" \n")]
    found = problems(put(tmp_path, train=train, test=[row(3, text=""), row(4, labels=())]))
    assert set(found) == {"empty texts", "without labels"}
    assert places(found["without labels"]) == [[("train", 3, "1")]]  # lines of the file
    assert_message(str(found["without labels"]), "train line 3", "id 1")
    assert "test" in found["empty texts"].what


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
    shared = [problem.what for problem in checked if problem.kind == "shared texts"]
    for what, splits in zip(shared, (("val", "train"), ("test", "train"), ("test", "val")), strict=True):
        assert_message(what, *splits)
    assert "near duplicates" not in found


def test_near_duplicates_above_the_threshold(tmp_path):
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


def test_unseen_and_similar_labels(tmp_path):
    train = [row(0, labels=["Sea fish", "b"]), row(1, labels=["sea  fish"])]
    found = problems(put(tmp_path, train=train, test=[row(2, labels=["B", "c", "d"])]))
    assert found["unseen labels"].details == ["B", "c", "d"]
    assert found["labels alike"].details == ["'Sea fish' = 'sea  fish'", "'b' = 'B'"]


def test_empty_split(tmp_path):
    assert set(problems(put(tmp_path, train=[row(0)], test=[]))) == {"no documents"}


def test_sparse_features(tmp_path):
    features = " ".join(f"{i}:1" for i in range(40))
    train = f"3 50 2\n0 {features}\n1 1:2\n\n"
    test = f"2 50 2\n0 {features} 49:1\n1 1:2\n"
    for split, text in {"train": train, "test": test}.items():
        (tmp_path / f"{split}.xmc.gz").write_bytes(gzip.compress(text.encode()))
    found = problems(tmp_path)
    assert places(found["near duplicates"]) == [[("test", 2, ""), ("train", 2, "")]]
    assert places(found["shared texts"]) == [[("test", 3, ""), ("train", 3, "")]]
    assert places(found["empty texts"]) == [[("train", 4, "")]]
    assert "features" in found["empty texts"].what


def test_labels_whose_documents_have_no_words(tmp_path):
    train = [row(0, "...", ["a", "mute"]), row(1, labels=["a"]), row(2, "--", ["quiet"])]
    problem = problems(put(tmp_path, train=train))["labels without words"]
    assert (problem.count, problem.details) == (2, ["mute", "quiet"])
