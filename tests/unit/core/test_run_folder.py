"""Run folders read back: which count, which are left out and why, and what they tell."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zoo.core import run_folder
from zoo.core.errors import UserError
from zoo.core.run_folder import RunFolder
from zoo.core.run_search import read_runs
from zoo.core.settings import flattened

CONFIG = """
seed_everything: 3
model:
  backbone: CNN
  head: {class_path: heads.Linear, init_args: {hidden: 8, inner: {class_path: my.Own, init_args: {x: 1}}}}
data: {class_path: datamodules.EurLex, init_args: {max_length: 100, limit_train: 6000}}
stages:
- {name: main, epochs: 8, on_enter: []}
- {name: tune, epochs: 2, on_enter: [fit]}
"""


@pytest.fixture
def make(tmp_path):
    """Write a run folder; a fact that is None is left out."""

    def run(place: str = "joint/t1", config: str | None = CONFIG, metrics=None, **facts) -> Path:
        folder = tmp_path / place
        folder.mkdir(parents=True)
        known = {"experiment": "joint", "data": "reuters", "sample": False, "seed": 0, "split": "test"} | facts
        content = {key: value for key, value in known.items() if value is not None}
        (folder / "metrics.json").write_text(json.dumps(content | {"metrics": metrics or {"P@1": 0.5}}))
        if config is not None:
            (folder / "config.yaml").write_text(config)
        return folder

    return run


def test_facts_metrics_and_settings(make):
    folder = make(seconds=7, peak_memory_mb={"host": 10, "gpu": 20.5}, metrics={"P@1": 0.25, "labels/all": 7})
    (run,) = read_runs([folder])
    assert run.path == folder
    assert run.name == "joint/t1"
    assert run.facts["seed"] == 0
    assert "metrics" not in run.facts
    assert run.metrics == {"P@1": 0.25, "labels/all": 7.0}
    assert [run.value(name) for name in ("P@1", "P@3", "seconds", "memory", "parameters")] == [
        0.25,
        None,
        7,
        20.5,
        None,
    ]
    assert run.config["seed_everything"] == 3
    assert run.settings["stages.tune.epochs"] == 2


def test_folders_above_are_searched_in_order_and_a_run_counts_once(make, tmp_path):
    wanted = [make("a/t2"), make("a/t1"), make("b/t1")]
    make("b/t1/checkpoints/old")
    make("b/t1/wandb/run")
    found = read_runs([wanted[0], tmp_path, str(tmp_path / "b" / ".." / "a")])
    assert [run.path for run in found] == [wanted[0], wanted[1], wanted[2]]
    link = tmp_path / "link"
    link.symlink_to(wanted[0])
    assert len(read_runs([link, wanted[0]])) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "unfinished"),
        ("{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        ("[1]", "no metrics"),
        ('{"metrics": {}}', "no metrics"),
        ('{"metrics": 3}', "no metrics"),
        ('{"seed": 1}', "no metrics"),
        ('{"metrics": {"P@1": "high"}}', "P@1 is 'high'"),
        ('{"metrics": {"P@1": true}}', "P@1 is True"),
        ('{"metrics": {"P@1": null}}', "P@1 is None"),
        ('{"metrics": {"P@1": NaN}}', "P@1 is nan"),
    ],
)
def test_others_are_named_with_the_reason_and_left_out(make, tmp_path, capsys, text, reason):
    good, bad = make("a/t1"), make("a/t2")
    file = bad / "metrics.json"
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert [run.path for run in read_runs([tmp_path])] == [good]
    (line,) = capsys.readouterr().err.splitlines()
    assert str(bad) in line
    assert reason in line
    with pytest.raises(UserError, match="no finished run"):
        read_runs([bad])


def test_partial_runs_are_left_out_unless_they_are_asked_for(make, tmp_path, capsys):
    whole, part = make("a/t1", partial=[]), make("a/t2", partial=["fast_dev_run"])
    assert [run.path for run in read_runs([tmp_path])] == [whole]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{part} (fast_dev_run)" in line
    assert "`partial`" in line
    assert [run.path for run in read_runs([tmp_path], partial=True)] == [whole, part]
    with pytest.raises(UserError, match="no finished run"):
        read_runs([part])


def test_paths_that_hold_nothing(make, tmp_path, capsys):
    folder = make()
    with pytest.raises(UserError, match="none does not exist"):
        read_runs([folder, tmp_path / "none"])
    with pytest.raises(UserError, match="is a file"):
        read_runs([folder / "metrics.json"])
    (tmp_path / "empty").mkdir()
    assert len(read_runs([folder, tmp_path / "empty"])) == 1
    assert "empty: no run folders" in capsys.readouterr().err
    with pytest.raises(UserError, match="no finished run"):
        read_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"limit_train": None}, "reuters"),
        ({"data": "eurlex57k", "limit_train": 500}, "eurlex57k, 500 documents"),
        ({"sample": True, "limit_train": 500}, "sample, 500 documents"),
        ({"sample": True, "limit_train": 500, "train_documents": 400}, "sample, 400 documents"),
        ({"limit_train": 500, "train_documents": 400}, "reuters, 500 documents"),
        ({"split": "val", "limit_train": 1234}, "reuters, 1,234 documents, validation"),
    ],
)
def test_the_name_of_the_data_says_what_part_of_it(make, facts, name):
    assert read_runs([make(**facts)])[0].data == name


def test_the_whole_corpus_has_its_own_name_alone(make):
    whole = CONFIG.replace("limit_train: 6000", "limit_train: null")
    assert [run.data for run in read_runs([make("a/1", whole), make("a/2", whole, sample=True)])] == [
        "reuters",
        "sample",
    ]


def test_samples_of_different_sizes_are_different_data(make):
    whole = CONFIG.replace("limit_train: 6000", "limit_train: null")
    runs = read_runs([make(f"a/{size}", whole, sample=True, train_documents=size) for size in (600, 2400)])
    assert sorted(run.data for run in runs) == ["sample, 2,400 documents", "sample, 600 documents"]


def test_settings_are_read_when_they_are_needed_and_once(make, monkeypatch):
    (run,) = read_runs([make(limit_train=10, head="Linear")])
    calls = []
    parse = run_folder.parse_yaml
    monkeypatch.setattr(run_folder, "parse_yaml", lambda text: calls.append(text) or parse(text))
    assert [run.data, run.fact("head"), run.fact("seed")] == ["reuters, 10 documents", "Linear", 0]
    assert calls == []
    assert run.settings["model.head.hidden"] == 8
    assert run.config is run.config
    assert len(calls) == 1


@pytest.mark.parametrize("text", ["model: {", "- 1", "\x00"])
def test_settings_that_cannot_be_read_count_as_empty_with_a_note(make, capsys, text):
    (run,) = read_runs([make(config=text)])
    assert run.config == run.settings == {}
    assert run.fact("head") == ""
    (line,) = capsys.readouterr().err.splitlines()
    assert "config.yaml cannot be read" in line


def test_settings_by_the_keys_that_people_override(make):
    (run,) = read_runs([make()])
    assert run.settings == {
        "seed_everything": 3,
        "model.backbone": "CNN",
        "model.head": "Linear",
        "model.head.hidden": 8,
        "model.head.inner": "Own",
        "model.head.inner.x": 1,
        "data": "EurLex",
        "data.max_length": 100,
        "data.limit_train": 6000,
        "stages.main.epochs": 8,
        "stages.main.on_enter": [],
        "stages.tune.epochs": 2,
        "stages.tune.on_enter": ["fit"],
    }
    assert flattened({"a": {"class_path": "x.Y", "init_args": None, "dict_kwargs": {"b": 1}}}) == {"a": "Y", "a.b": 1}
    assert flattened({"groups": {}, "betas": [0.9, 0.99]}) == {"groups": {}, "betas": [0.9, 0.99]}
    callbacks = [{"class_path": "x.Y", "init_args": {"a": 1}}, {"class_path": "x.Z", "init_args": {"b": 2}}]
    assert flattened({"callbacks": callbacks}) == {"callbacks": "Z", "callbacks.a": 1, "callbacks.b": 2}


def test_tables_are_read_as_they_were_written(make):
    run = RunFolder(make())
    assert run.predictions is run.labels is None
    run = RunFolder(run.path)
    predictions = pa.table({"row": [0], "id": ["a"], "truth": [[0]], "labels": [[0]], "scores": [[0.5]]})
    labels = pa.table({"label": ["x"], "text": ["y"], "documents": [3], "weight": [1.0]})
    run.write_predictions(predictions, labels)
    assert run.predictions.equals(predictions)
    assert (run.label_names, run.label_texts, run.label_documents.tolist()) == (["x"], ["y"], [3])


def test_tables_without_a_column_are_ignored_with_a_note(make, caplog):
    run = RunFolder(make())
    pq.write_table(pa.table({"label": ["x"]}), run.path / "labels.parquet")
    assert run.labels is None
    (line,) = caplog.messages
    assert "labels.parquet" in line
    assert "text, documents, weight" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_of_somebody_else(make, capsys):
    good, closed = make("a/1"), make("a/2")
    (closed / "metrics.json").chmod(0)
    assert [run.path for run in read_runs([good.parent])] == [good]
    assert "Permission denied" in capsys.readouterr().err
