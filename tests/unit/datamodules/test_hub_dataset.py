"""Datasets of the Hugging Face hub, from local folders in its formats."""

import json

import datasets
import pytest

from datamodules import HubDataset
from datamodules.corpora.hub_dataset import HubSource
from datamodules.prepare.readers import BadRows, Format
from tests.support.errors import raises
from zoo.core.errors import UserError

TOPICS = datasets.ClassLabel(names=["grain", "cocoa", "gold"])


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


def module(folder, tmp_path, **settings):
    return HubDataset(str(folder), cache_dir=str(tmp_path / "cache"), **settings)


def rows_of(data, split):
    targets = data.targets(split)
    names = [*data.space.names, *data.space.unseen]
    labels = [targets.indices[a:b].tolist() for a, b in zip(targets.indptr, targets.indptr[1:], strict=False)]
    return dict(zip(data.prepared.rows(split).ids(), [sorted(names[i] for i in row) for row in labels], strict=True))


def saved(folder, features=None, **splits):
    made = {name: datasets.Dataset.from_list(rows, features=features) for name, rows in splits.items()}
    datasets.DatasetDict(made).save_to_disk(folder)
    return folder


@pytest.fixture
def jsonl(tmp_path):
    """A dataset that is a folder of JSONL files."""
    folder = tmp_path / "news"
    folder.mkdir()
    for split, size in {"train": 30, "validation": 5, "test": 4}.items():
        rows = [{"key": f"{split}-{i}", "body": f"a text {i}", "topics": ["x", "y"][: 1 + i % 2]} for i in range(size)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


COLUMNS = {"text_column": "body", "label_column": "topics", "id_column": "key"}


def test_usual_split_names_are_found(jsonl, tmp_path):
    data = module(jsonl, tmp_path, **COLUMNS)
    assert data.corpus_name == "news"
    assert [len(data.prepared.rows(split)) for split in ("train", "val", "test")] == [30, 5, 4]
    assert rows_of(data, "test") == {"test-0": ["x"], "test-1": ["x", "y"], "test-2": ["x"], "test-3": ["x", "y"]}


def test_splits_can_be_chosen_and_validation_is_split_off(jsonl, tmp_path):
    data = module(jsonl, tmp_path, train="test", val="validation", test="train", **COLUMNS)
    assert [len(data.prepared.rows(split)) for split in ("train", "val", "test")] == [4, 5, 30]
    folder = saved(tmp_path / "small", train=[{"text": f"a {i}", "labels": ["x"]} for i in range(50)])
    data = module(folder, tmp_path)
    assert 0 < len(data.prepared.rows("val")) < 20
    assert len(data.prepared.rows("test")) == 0


@pytest.mark.parametrize("alone", [False, True], ids=["lists", "alone"])
def test_classes_are_replaced_by_their_names(tmp_path, alone):
    features = datasets.Features(
        {"id": datasets.Value("int64"), "text": datasets.Value("string"), "labels": TOPICS if alone else [TOPICS]}
    )
    rows = [{"id": i, "text": f"text {i}", "labels": i % 3 if alone else [i % 3, (i + 1) % 3]} for i in range(30)]
    data = module(saved(tmp_path / "classes", features, train=rows, validation=rows[:2]), tmp_path)
    assert set(data.space.names) == {"grain", "cocoa", "gold"}
    assert rows_of(data, "val")["1"] == (["cocoa"] if alone else ["cocoa", "gold"])


def test_missing_and_invalid_classes(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "labels": [TOPICS]})
    rows = [{"text": "t", "labels": [0, None, -1]}] * 20
    folder = saved(tmp_path / "gaps", features, train=rows, validation=rows[:2])
    assert module(folder, tmp_path).space.names == ["grain"]
    names = datasets.ClassLabel(names=["one"])
    made = datasets.Dataset.from_dict({"text": ["t"] * 5, "labels": [[0], [0], [0], [0], [7]]})
    wrong = made.cast(datasets.Features({"text": datasets.Value("string"), "labels": [datasets.Value("int64")]}))
    wrong.info.features = datasets.Features({"text": datasets.Value("string"), "labels": [names]})
    source = HubSource(wrong, tmp_path / "wrong", Format(), BadRows())
    with raises(UserError, "line 5", 7):
        list(source.read(lambda amount: None))


def test_dataset_format_does_not_matter(tmp_path):
    rows = datasets.Dataset.from_list([{"text": "t", "labels": ["x", "y"]}] * 20).with_format("numpy")
    datasets.DatasetDict({"train": rows, "validation": rows}).save_to_disk(tmp_path / "arrays")
    assert module(tmp_path / "arrays", tmp_path).space.names == ["x", "y"]


def test_label_strings_are_split(tmp_path):
    rows = [{"text": "t", "labels": "x;y"}, {"text": "u", "labels": ""}] * 20
    data = module(saved(tmp_path / "strings", train=rows, validation=rows), tmp_path, label_sep=";")
    assert (data.space.names, len(data.prepared.rows("train"))) == (["x", "y"], 20)


def test_bad_rows_are_counted_and_tolerated(tmp_path):
    rows = [{"text": "t", "labels": ["x"]}] * 20 + [{"text": None, "labels": ["x"]}, {"text": "t", "labels": None}]
    folder = saved(tmp_path / "bad", train=rows, validation=rows[:2])
    with raises(UserError, "bad/train", 2, "21, 22", "'text'"):
        _ = module(folder, tmp_path).space
    assert len(module(folder, tmp_path, max_bad_rows=2).prepared.rows("train")) == 20


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"text_column": "nothing"}, ["'nothing'", "'key', 'body', 'topics'", "`text_column="]),
        ({"label_column": "nothing"}, ["'nothing'", "`label_column="]),
        ({"train": "nothing"}, ["'nothing'", "`train`", "train, validation, test"]),
    ],
)
def test_unknown_names_are_rejected(jsonl, tmp_path, settings, names):
    with raises(UserError, *names):
        _ = module(jsonl, tmp_path, **COLUMNS | settings).space


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("./no/folder", ["'./no/folder'"]),
        ("nobody/nothing", ["'nobody/nothing'", "HF_HUB_OFFLINE"]),
    ],
)
def test_missing_datasets_are_reported(tmp_path, monkeypatch, name, names):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(UserError, *names):
        _ = module(name, tmp_path).space


def test_cache_key_depends_on_content_and_columns(jsonl, tmp_path):
    one, same = (module(jsonl, tmp_path, **COLUMNS).prepared.folder for _ in range(2))
    other = module(jsonl, tmp_path, **COLUMNS | {"id_column": "none"}).prepared.folder
    assert one == same != other
