"""Parsing of grids, searches, options and sweep files."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.errors import raises
from zoo.commands.sweep_options import read_plan, seconds
from zoo.core.errors import UserError
from zoo.core.run_folder import RunFolder
from zoo.core.shipped import find_experiment
from zoo.sweeps.axes import grid_settings, options_of, parse_texts, run_name, short_keys, split_values


def grid(*texts):
    return parse_texts(texts, search=False)


def search(text):
    (axis,) = parse_texts([text], search=True)
    return axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("{a: [1,2], b: 3},null", ["{a: [1,2], b: 3}", "null"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"a]b","c, d"', ['"a]b"', '"c, d"']),
        ("it's,that's", ["it's", "that's"]),
        ("['a,b', c],1e-3", ["['a,b', c]", "1e-3"]),
        ("1, 2", ["1", "2"]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, values):
    assert split_values(text) == values


def test_a_grid_has_all_combinations_in_order():
    axes = grid("b=2,1", "a.c=x,y")
    found = [options_of(axes, setting) for setting in grid_settings(axes)]
    assert found == [["--b=2", "--a.c=x"], ["--b=2", "--a.c=y"], ["--b=1", "--a.c=x"], ["--b=1", "--a.c=y"]]


def test_joined_keys_get_the_same_value():
    axes = grid("model.head.fraction+trainer.callbacks.fraction=0.1,0.2")
    second = grid_settings(axes)[1]
    assert options_of(axes, second) == ["--model.head.fraction=0.2", "--trainer.callbacks.fraction=0.2"]


@pytest.mark.parametrize(
    ("text", "low", "high", "log"),
    [
        ("n=1..20", 1, 20, False),
        ("lr=1e-4..1e-2:log", 1e-4, 1e-2, True),
        ("n=1..2.5", 1.0, 2.5, False),
        ("n=-3..3", -3, 3, False),
        ("n=.1...5", 0.1, 0.5, False),
        ("n=4..64:log", 4, 64, True),
    ],
)
def test_ranges(text, low, high, log):
    axis = search(text)
    assert (axis.low, axis.high, axis.log, axis.choices) == (low, high, log, ())
    assert type(axis.low) is type(axis.high) is type(low)


def test_a_search_can_have_choices():
    assert search("model.head=Linear|LSAN").choices == search("model.head=Linear,LSAN").choices == ("Linear", "LSAN")
    assert search("a=[1, 2]|[3]").choices == ("[1, 2]", "[3]")


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,,2", "a=1,1", "a=[1,2", "a b=1", "a+=1", "a='x"])
def test_an_invalid_grid_is_refused(text):
    with pytest.raises(UserError):
        grid(text)


@pytest.mark.parametrize("text", ["a", "a=3", "a=x..y", "a=1..", "a=1|1", "a=..2"])
def test_an_invalid_search_is_refused(text):
    with pytest.raises(UserError):
        search(text)


@pytest.mark.parametrize("text", ["a=5..1", "a=0..1:log", "a=1..inf", "a=-inf..1", "a=1..1e999", "a=1..nan"])
def test_a_range_needs_finite_bounds_in_order(text):
    with raises(UserError, text):
        search(text)


@pytest.mark.parametrize(
    "text", ["model.backbone.config={a: 1/2, b: [x, 'y z']},q", f"k={'x' * 300},y", "p=../up,b", "s=ä ß,b", "e=.,.."]
)
def test_run_names_are_valid_and_unique(text):
    axes = grid(text)
    names = [run_name("experiment" * 5, axes, setting) for setting in grid_settings(axes)]
    assert len(set(names)) == len(names) == 2
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name)
        assert len(name) <= 100


def test_long_values_with_a_common_prefix_have_different_names():
    axes = grid(f"k={'x' * 200}1,{'x' * 200}2")
    assert len({run_name("e", axes, setting) for setting in grid_settings(axes)}) == 2


def test_keys_are_shortened_to_a_unique_suffix():
    axes = grid("stages.head.epochs=1", "stages.tail.epochs=2")
    assert list(short_keys(axes).values()) == ["head.epochs", "tail.epochs"]


def test_the_value_of_a_run_is_the_best_of_its_last_validated_stage(tmp_path):
    from zoo.sweeps.children import FitRun

    run = tmp_path / "2026-01-01_00-00-00"
    run.mkdir()
    rows = ["stage,val/x,step", "0,,0", ",0.9,1", "1,,2", "2,,2", ",0.5,3", ",0.7,4", ",0.6,5", "3,,6", ",,6", ",0.8"]
    (run / "metrics.csv").write_text("\n".join(rows))  # the last row is being written
    assert RunFolder(run).validations("val/x") == [(0, 0.9), (2, 0.5), (2, 0.7), (2, 0.6)]
    assert FitRun(tmp_path, [], "val/x").value() == 0.7
    assert FitRun(tmp_path, [], "val/y").value() is None


def test_options_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text("{}")
    plan = read_plan(["--config", "e.yaml", "--grid", "a=1,2", "b=3", "--data", "Sample", "--grid=c=4", "--x=-1"])
    assert [axis.name for axis in plan.axes] == ["a", "b", "c"]
    assert plan.options == ["--data=Sample", "--x=-1"]
    assert (plan.prune, plan.seeds, plan.jobs, str(plan.out)) == (False, 1, 1, "runs/sweeps/e")
    plan = read_plan(
        ["--config=e.yaml", "--search", "a=1..2", "--trials=7", "--timeout=2h", "--storage=sqlite:///x.db"]
    )
    assert (plan.prune, plan.trials, plan.timeout, plan.storage) == (True, 7, 7200, "sqlite:///x.db")
    assert seconds("90") == seconds("90s") == seconds("1.5m") == 90


E = "--config=e.yaml"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--grid", "a=1"], ["--config"]),
        (["--config=no.yaml", "--grid", "a=1"], ["no.yaml"]),
        (["--config=lsfa_eurlx", "--grid", "a=1"], ["lsfa_eurlx", "lsfa_eurlex"]),
        ([E], ["--grid", "--search"]),
        ([E, "--grid", "a=1", "--search", "b=1..2"], ["--grid", "--search"]),
        ([E, "--search", "b=1..2"], ["--search", "--trials"]),
        ([E, "--grid", "a=1", "--seeds=0"], ["--seeds", "'0'"]),
        ([E, "--grid", "a=1", "--prune=maybe"], ["--prune", "'maybe'"]),
        ([E, "--grid", "a=1", "--timeout=soon"], ["--timeout", "'soon'"]),
        ([E, "--grid", "a=1", "--timeout=-5m"], ["--timeout", "'-5m'"]),
        ([E, "--grid", "a=1", "--timeout=nan"], ["--timeout", "'nan'"]),
        ([E, "--grid", "a=1", "--name=mine"], ["name"]),
        ([E, "--grid", "a=1", "a+b=1"], ["a is varied twice"]),
        ([E, "--grid", "a=1", "a=2"], ["a is varied twice"]),
        ([E, "--grid", "a=1", "--grid", "b=3", "a=1"], ["a is varied twice"]),
        ([E, "--grid", "seed_everything=1,2"], ["seed_everything", "--seeds"]),
        ([E, "--grid", "x+name=1,2"], ["name is set by the sweep"]),
        ([E, "--grid", "runs=a,b"], ["runs"]),
        ([E, "--grid", "ckpt_path=a,b"], ["ckpt_path"]),
        ([E, "--search", "ckpt=a|b", "--trials=2"], ["ckpt"]),
        ([E, "--grid", "config=a,b"], ["config", "--config"]),
        ([E, "--grid", "a=1", "--metric=train/main/loss"], ["--metric=train/main/loss"]),
        (["stray", E, "--grid", "a=1"], ["'stray'"]),
        (["--sweep=no.yaml"], ["no.yaml"]),
    ],
)
def test_an_invalid_command_line_names_the_option(args, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text("{}")
    with raises(UserError, *names):
        read_plan(args)


def test_an_experiment_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = read_plan(["--config", "lsfa_eurlex", "--grid", "a=1"])
    assert (plan.experiment, plan.fit_options) == ("lsfa_eurlex", ["--config", "lsfa_eurlex"])
    assert (
        plan.identity()["config"]
        == read_plan(["--config", str(find_experiment("lsfa_eurlex")), "--grid", "a=1"]).identity()["config"]
    )


def test_options_override_a_sweep_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "e.yaml").write_text("{}")
    content = {"config": "../e.yaml", "grid": {"a": [1, None, [2, 3]], "b": ["x"]}, "seeds": 3, "options": ["--d=1"]}
    (tmp_path / "sweeps" / "s.yaml").write_text(yaml.safe_dump(content))
    plan = read_plan(["--sweep", "sweeps/s.yaml", "--grid", "b=y,z", "--seeds=2", "--d=2"])
    assert [axis.choices for axis in plan.axes] == [("1", "null", "[2, 3]"), ("y", "z")]
    assert (plan.configs, plan.seeds, plan.options) == (["e.yaml"], 2, ["--d=1", "--d=2"])
    assert str(plan.out) == "runs/sweeps/s"
    (tmp_path / "sweeps" / "s.yaml").write_text("grid: {a: [1]}\nsedes: 3\n")
    with raises(UserError, "'sedes'", "seeds"):
        read_plan(["--sweep", "sweeps/s.yaml"])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("seeds: [0, 1]", ["--seeds", "[0, 1]"]),
        ("trials: 2.7", ["--trials", "2.7"]),
        ("config: 3", ["`config`"]),
        ("config: [3]", ["`config`"]),
        ("options: --data=Sample", ["`options`"]),
        ("options: {--data: Sample}", ["`options`"]),
        ("options: [--data: Sample]", ["`options`"]),
        ("grid: {name: [x, y]}", ["name"]),
        ("# \xe4", ["s.yaml", "UTF-8"]),
    ],
)
def test_an_invalid_sweep_file_is_refused_with_the_key(line, names, tmp_path):
    (tmp_path / "e.yaml").write_text("{}")
    key = line.partition(":")[0]
    content = {"config": "config: e.yaml", "grid": "grid: {a: [1]}"} | {key: line}
    (tmp_path / "s.yaml").write_text("\n".join(content.values()), "latin1")
    with raises(UserError, *names):
        read_plan([f"--sweep={tmp_path}/s.yaml"])
