"""Preparation of a corpus: label order, splits, what is left out, and a cache that is complete or absent."""

import errno
import multiprocessing
from collections import Counter

import pytest

from datamodules import TextFiles
from datamodules.prepare import preparation as prepare
from datamodules.prepare.preparation import Settings
from datamodules.prepare.rows import CHUNK, RowWriter
from datamodules.prepare.tokens import WordTokenizer
from tests.support.corpora import document, write_jsonl
from tests.support.errors import raises
from zoo.core.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_environment")


def many(size, prefix="d"):
    return [document(f"{prefix}{i}", ["even" if i % 2 == 0 else "odd", f"tens{i // 10}"]) for i in range(size)]


def make(folder, train, val=None, test=None, **kwargs):
    files = {
        split: write_jsonl(folder / "tiny" / f"{split}.jsonl", documents)
        for split, documents in {"train": train, "val": val, "test": test}.items()
        if documents is not None
    }
    return TextFiles(**files, **{"cache_dir": str(folder / "cache")} | kwargs)


def folders(cache):
    return sorted(path for path in cache.glob("*") if path.is_dir()) + sorted(cache.glob(".*"))


def ids(data, split):
    return list(data.prepared.rows(split).ids())


def labels(data, split):
    rows, names = data.prepared.rows(split), data.space.names + data.space.unseen
    batches = (rows[[i]] for i in range(len(rows)))
    return {id: {names[j] for j in b.targets.indices} for id, b in zip(rows.ids(), batches, strict=True)}


def test_labels_are_ordered_by_count_and_name(tmp_path):
    train = [document("1", ["b", "c"]), document("2", ["a", "c"]), document("3", ["c", "z", "z"])]
    data = make(tmp_path, train, val=[document("4", ["c"])])
    assert data.space.names == ["c", "a", "b", "z"]
    assert data.space.counts == [3, 1, 1, 1]
    assert data.space.num_documents == data.space.reference_documents == 3
    assert data.prepared.rows("train")[[0, 1, 2]].targets.indices.tolist() == [0, 2, 0, 1, 0, 3]


def test_labels_unseen_in_training_come_last(tmp_path):
    data = make(
        tmp_path,
        [document("1", ["a"])],
        val=[document("2", ["new", "a"])],
        test=[document("3", ["newer", "new"]), document("4", ["a"])],
    )
    space = data.space
    assert (space.names, space.unseen, space.reference_counts) == (["a"], ["new", "newer"], [1, 0, 0])
    assert (space.num_labels, space.num_all) == (1, 3)
    assert data.prepared.rows("test")[[0, 1]].targets.indices.tolist() == [1, 2, 0]
    assert any("2 labels occur in no training document" in line for line in data.prepared.report)


def test_documents_keep_their_labels(tmp_path):
    train, test = many(60), many(15, "t")
    data = make(tmp_path, train, test=test)
    kept = labels(data, "train") | labels(data, "val") | labels(data, "test")
    assert kept == {d["id"]: set(d["labels"]) for d in train + test}


def test_reference_counts_include_the_validation_part(tmp_path):
    train = many(80)
    space = make(tmp_path, train, val_fraction=0.3).space
    reference = Counter(label for d in train for label in d["labels"])
    assert dict(zip(space.names + space.unseen, space.reference_counts, strict=True)) == reference
    assert space.reference_documents == 80
    assert 40 < space.num_documents < 75
    assert space.counts != space.reference_counts


def test_the_validation_part_follows_the_seed(tmp_path):
    def split(folder, seed):
        data = make(tmp_path / folder, many(80), seed=seed, val_fraction=0.25)
        assert sorted(ids(data, "train") + ids(data, "val")) == sorted(d["id"] for d in many(80))
        return set(ids(data, "val"))

    assert split("a", 0) == split("b", 0) != split("c", 1)
    assert 5 < len(split("a", 0)) < 40


def test_limit_train_draws_a_reproducible_subset(tmp_path):
    one = make(tmp_path / "a", many(60), limit_train=10)
    other = make(tmp_path / "b", many(60)[::-1], limit_train=10)
    assert len(set(ids(one, "train"))) == len(ids(one, "train")) == one.space.num_documents == 10
    assert set(ids(one, "train")) == set(ids(other, "train"))
    assert set(ids(one, "val")) == set(ids(other, "val"))
    assert sum(one.space.counts) == 20
    more = make(tmp_path / "a", many(60), limit_train=20)
    assert set(ids(one, "train")) < set(ids(more, "train"))


def test_limit_train_counts_labelled_documents_only(tmp_path):
    train = [d | {"labels": d["labels"] if i % 3 else []} for i, d in enumerate(many(60))]
    assert make(tmp_path, train, limit_train=12).space.num_documents == 12
    assert make(tmp_path, train, val=many(2, "v"), limit_train=50).space.num_documents == 40


def test_training_documents_without_labels_are_left_out(tmp_path):
    train = [document("1", ["a"]), document("2", []), document("3", ["a"]), document("4", [])]
    data = make(tmp_path, train, val=[document("5", [])])
    assert ids(data, "train") == ["1", "3"]
    assert ids(data, "val") == ["5"]
    assert "2 training documents without labels were left out" in data.prepared.report


def test_an_empty_text_is_one_unknown_word(tmp_path):
    data = make(tmp_path, [document("1", ["a"], ""), document("2", ["a"], "two words")], val=many(2))
    vocabulary = data.prepared.vocabulary
    assert data.prepared.rows("train")[[0]].ids.tolist() == [[vocabulary.unk_id]]
    assert data.prepared.rows("train").lengths.tolist() == [1, 2]
    assert "1 documents have no text" in data.prepared.report


def test_ids_in_two_splits_are_reported(tmp_path):
    data = make(tmp_path, many(20), val=many(5, "v"), test=[*many(3, "v"), *many(2), *many(4, "t")])
    assert "2 ids occur in both train and test" in data.prepared.report
    assert "3 ids occur in both val and test" in data.prepared.report
    assert not [line for line in data.prepared.report if "in train and in val" in line]


def test_missing_ids_are_not_repeats(tmp_path):
    def nameless(size):
        return [{"text": "t", "labels": ["a"]} for _ in range(size)]

    data = make(tmp_path, nameless(20), val=nameless(5), test=nameless(5))
    assert data.prepared.report == []


def test_bad_rows_are_reported_once(tmp_path):
    train = write_jsonl(tmp_path / "tiny" / "train.jsonl", many(20))
    with open(train, "a") as file:
        file.write("oops\n")
    data = TextFiles(train, max_bad_rows=1, cache_dir=str(tmp_path / "cache"))
    assert [line for line in data.prepared.report if "1 bad row, at line 21" in line] == data.prepared.report


@pytest.mark.parametrize("train", [[], [document("1", []), document("2", [])]])
def test_a_corpus_without_labels_is_rejected(tmp_path, train):
    with raises(UserError, "tiny", "label"):
        _ = make(tmp_path, train).prepared
    assert folders(tmp_path / "cache") == []


def content(data):
    return {path.name: path.read_bytes() for path in data.prepared.folder.iterdir()}


def test_preparation_is_deterministic_whatever_the_chunk_size(tmp_path, monkeypatch):
    train = [d | {"labels": [] if i % 7 == 0 else d["labels"]} for i, d in enumerate(many(CHUNK + 100))]
    splits = {"train": train, "test": many(9, "t"), "limit_train": 1000}
    expected = content(make(tmp_path / "a", **splits))
    assert sorted(expected) == [
        "facts.json",
        "manifest.json",
        "test.arrow",
        "tokenizer.json",
        "train.arrow",
        "val.arrow",
    ]
    assert content(make(tmp_path / "b", **splits)) == expected
    monkeypatch.setattr(prepare, "CHUNK_CHARACTERS", 500)
    assert content(make(tmp_path / "c", **splits)) == expected


def test_the_second_use_reads_the_cache(tmp_path, monkeypatch):
    first = make(tmp_path, many(20), test=many(4, "t")).prepared

    def refuse(*args):
        raise AssertionError("written twice")

    monkeypatch.setattr(prepare._Preparation, "run", refuse)
    second = make(tmp_path, many(20), test=many(4, "t"), batch_size=3, propensity_a=0.6).prepared
    assert second.folder == first.folder
    assert second.space == first.space
    assert second.report == first.report
    assert second.vocabulary.text == first.vocabulary.text


CHANGES = [
    {"max_length": 3},
    {"windows": 2},
    {"max_words": 5},
    {"val_fraction": 0.2},
    {"limit_train": 5},
    {"seed": 1},
    {"test": many(2, "t")},
    {"train": many(21)},
    {"label_sep": ";"},
    {"name": "other"},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_changed_files_and_settings_have_their_own_cache(tmp_path, change):
    first = make(tmp_path, many(20)).prepared.folder
    second = make(tmp_path, **{"train": many(20)} | change).prepared.folder
    assert first != second
    assert folders(tmp_path / "cache") == sorted([first, second])


def test_every_setting_is_covered_by_a_change():
    assert set(Settings.__dataclass_fields__) - {"tokenizer"} <= {key for change in CHANGES for key in change}


def test_a_crash_leaves_no_files(tmp_path, monkeypatch):
    def crash(*args):
        assert [path for path in folders(tmp_path / "cache") if path.name.startswith(".tiny-")]
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(WordTokenizer, "tokenize", crash)
        with raises(RuntimeError, "power cut"):
            _ = make(tmp_path, many(20)).prepared
    assert folders(tmp_path / "cache") == []
    assert make(tmp_path, many(20)).space.reference_documents == 20


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RowWriter, "write_batch", full)
    with raises(UserError, tmp_path / "cache", "`cache_dir`"):
        _ = make(tmp_path, many(20)).prepared
    assert folders(tmp_path / "cache") == []


def prepare_at_once(folder, barrier, answers):
    run = prepare._Preparation.run

    def counted(*args):
        answers.put("written")
        run(*args)

    prepare._Preparation.run = counted
    data = make(folder, many(30))
    barrier.wait(30)
    answers.put((str(data.prepared.folder), tuple(ids(data, "train")), tuple(data.space.names)))


def test_concurrent_processes_prepare_once(tmp_path):
    make(tmp_path, many(30))  # writes the file before anyone reads it
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(3), context.Queue()
    processes = [context.Process(target=prepare_at_once, args=(tmp_path, barrier, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    got = [answers.get(timeout=20) for _ in range(4)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert got.count("written") == 1
    assert len({answer for answer in got if answer != "written"}) == 1
    assert folders(tmp_path / "cache") == [make(tmp_path, many(30)).prepared.folder]
