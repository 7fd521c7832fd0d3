"""Run folders that are damaged, or written to do harm: named in one line and left out, never trusted."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zoo.analysis.evidence import Evidence
from zoo.analysis.pairs import read_tested
from zoo.analysis.sheets import Cell, Sheet, csv_cell, to_markdown, to_terminal
from zoo.core.console import terminal_output
from zoo.core.errors import UserError, printable
from zoo.core.run_folder import RunFolder
from zoo.core.run_search import read_runs
from zoo.core.settings import parse_yaml, read_yaml

PREDICTIONS = {
    "row": [0, 1],
    "id": ["a", "b"],
    "truth": [[0], [1]],
    "labels": [[0, 1], [1]],
    "scores": [[0.9, 0.1], [0.5]],
}
LABELS = {"label": ["x", "y"], "text": ["", ""], "documents": [3, 2], "weight": [1.0, 2.0]}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    (place / "metrics.json").write_text(json.dumps({"experiment": "e", "metrics": {"P@1": 0.5}}))
    write(place, {}, {})
    return place


def write(place, predictions, labels):
    pq.write_table(pa.table(PREDICTIONS | predictions), place / "predictions.parquet")
    pq.write_table(pa.table(LABELS | labels), place / "labels.parquet")


def notes(capsys, action):
    with terminal_output():
        result = action()
    return result, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "metrics"),
        ('{"metrics": {"P@1": NaN}}', "nan"),
        ('{"metrics": {"P@1": "high"}}', "'high'"),
        ('{"metrics": {"inner/P@1": 1.5}}', "1.5"),
        ('{"metrics": {"threshold": 1%s}}' % ("0" * 400), "not a number"),
        ('{"experiment": "e"}', "metrics"),
    ],
)
def test_broken_metrics_are_skipped_by_name(folder, tmp_path, capsys, content, reason):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "metrics.json").write_text(content)
    runs, text = notes(capsys, lambda: read_runs([tmp_path]))
    assert [run.path for run in runs] == [folder]
    assert str(bad) in text
    assert reason in text


@pytest.mark.parametrize(
    ("predictions", "labels", "reason"),
    [
        ({"truth": [[0], [2]]}, {}, "`truth`"),
        ({"labels": [[0, -1], [1]]}, {}, "`labels`"),
        ({"labels": [[0, 0], [1]]}, {}, "twice"),
        ({"labels": [[0], [1]]}, {}, "length"),
        ({"scores": [[0.9, float("nan")], [0.5]]}, {}, "finite"),
        ({"scores": [[0.9, None], [0.5]]}, {}, "empty"),
        ({"truth": [["x"], ["y"]]}, {}, "predictions.parquet"),
        ({"truth": [0, 1]}, {}, "predictions.parquet"),
        ({"id": [1, 2]}, {}, "`id`"),
        ({}, {"documents": [-1, 2]}, "`documents`"),
        ({}, {"weight": [0.0, 1.0]}, "`weight`"),
        ({}, {"weight": ["a", "b"]}, "labels.parquet"),
        ({}, {"label": [1, 2]}, "`label`"),
    ],
)
def test_predictions_that_cannot_be_right_are_ignored(folder, capsys, predictions, labels, reason):
    assert read_tested(RunFolder(folder)) is not None
    write(folder, predictions, labels)
    tested, text = notes(capsys, lambda: read_tested(RunFolder(folder)))
    assert tested is None
    assert str(folder) in text
    assert reason in text


TEXTS = np.array(json.dumps({"experts": [], "examples": []}))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"texts": np.array("{")},
        {"texts": np.array('{"experts": 3, "examples": []}')},
        {"texts": np.array('{"experts": [], "examples": [{}]}')},
        {"texts": TEXTS, "unknown": np.zeros(1)},
        {"texts": TEXTS, "norms": np.zeros((2, 2))},
        {"texts": TEXTS, "norms": np.array(["a", "b"])},
        {"texts": TEXTS, "correlated": np.array([0, 1]), "correlation": np.zeros((3, 3))},
        {
            "texts": TEXTS,
            "points_values": np.zeros((2, 3)),
            "points_labels": np.array([0]),
            "points_generated": np.ones(2),
        },
        {"texts": TEXTS, "points_values": np.zeros((1, 3))},
        {"texts": TEXTS, "divergence": np.zeros((2, 2))},
        {"texts": TEXTS, "correlated": np.array([9]), "correlation": np.zeros((1, 1))},
        {"texts": np.array([{"a": 1}], dtype=object)},  # pickled
    ],
)
def test_evidence_of_another_form_is_ignored(folder, capsys, arrays):
    np.savez(folder / "evidence.npz", **arrays)
    evidence, text = notes(capsys, lambda: Evidence.load(RunFolder(folder)))
    assert evidence is None
    assert "evidence.npz" in text


@pytest.mark.parametrize("name", ["metrics.json", "config.yaml", "predictions.parquet", "metrics.csv", "evidence.npz"])
def test_links_out_of_a_run_folder_are_refused(folder, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("step\n1\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    run = RunFolder(folder)
    if name == "metrics.json":
        with pytest.raises(UserError, match="no finished run"):
            read_runs([folder])
    found = {"config.yaml": run.config_text, "metrics.csv": run.log_rows}
    assert not found.get(name)
    assert run.predictions is None or name != "predictions.parquet"
    assert run.read_evidence() is None


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+a", "'+a"),
        ("-x", "'-x"),
        ("@f", "'@f"),
        ("-5.5", "-5.5"),
        ("+3", "+3"),
        ("\t=1", "'=1"),
        ("a=1", "a=1"),
    ],
)
def test_texts_are_no_formulas_in_csv(text, cell):
    assert csv_cell(text).replace(" ", "") == cell


def test_control_characters_reach_no_table():
    nasty = "a\x1b[31mb\x07\u202ec"
    sheet = Sheet(nasty, [nasty, "P@1"], [[Cell(nasty), Cell("1")]], 1, about=nasty)
    for text in (to_terminal([sheet]), to_markdown([sheet]), csv_cell(nasty), printable(nasty)):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_a_key_that_is_given_twice(tmp_path):
    with pytest.raises(ValueError, match=r"line 3: 'lr'"):
        parse_yaml("model:\n  lr: 1\n  lr: 2\n")
    assert parse_yaml("a: &x {k: 1}\nb: {<<: *x, k: 2}") == {"a": {"k": 1}, "b": {"k": 2}}
    (tmp_path / "x.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(UserError, match=r"x\.yaml.*'a'"):
        read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]",
        "[" * 20_000,
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
            for before, name in zip("abcdef", "bcdefg", strict=True)
        ),
    ],
)
def test_yaml_that_would_fill_the_memory(text):
    with pytest.raises(ValueError, match=r"itself|deep|values|parsing"):
        parse_yaml(text)
