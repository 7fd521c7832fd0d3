"""Sweeps of a stand-in for `zoo fit`: what is run, what is run again, and what is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import types
from collections import Counter

import pytest
import yaml

from datamodules.errors import UserError
from tests.unit.sweeps import Sweeps
from zoo.sweep.axes import grid_settings, options_of, parse_texts, run_name, short_keys, split_values
from zoo.sweep.children import Lock, read_validations
from zoo.sweep.plan import read_plan, seconds


@pytest.fixture
def sweeps(tmp_path) -> Sweeps:
    return Sweeps(tmp_path)


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


def test_a_grid_goes_through_all_combinations_in_the_order_given():
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


def test_ranges_end_above_their_beginning_and_somewhere():
    with pytest.raises(UserError, match="is no range: the end must be above the beginning"):
        search("a=5..1")
    for text in ("a=1..inf", "a=-inf..1", "a=1..1e999", "a=1..nan"):
        with pytest.raises(UserError, match="its ends are finite"):
            search(text)


def test_a_choice_within_a_search():
    assert search("model.head=Linear|LSAN").choices == search("model.head=Linear,LSAN").choices == ("Linear", "LSAN")
    assert search("a=[1, 2]|[3]").choices == ("[1, 2]", "[3]")


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,,2", "a=1,1", "a=[1,2", "a b=1", "a+=1", "a='x"])
def test_a_bad_grid_is_refused(text):
    with pytest.raises(UserError):
        grid(text)


@pytest.mark.parametrize("text", ["a", "a=3", "a=5..1", "a=0..1:log", "a=x..y", "a=1..", "a=1|1", "a=..2"])
def test_a_bad_search_is_refused(text):
    with pytest.raises(UserError):
        search(text)


@pytest.mark.parametrize(
    "text", ["model.backbone.config={a: 1/2, b: [x, 'y z']},q", f"k={'x' * 300},y", "p=../up,b", "s=ä ß,b", "e=.,.."]
)
def test_names_are_legal_folders_and_tell_settings_apart(text):
    axes = grid(text)
    names = [run_name("experiment" * 5, axes, setting) for setting in grid_settings(axes)]
    assert len(set(names)) == len(names) == 2
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name)
        assert len(name) <= 100


def test_long_values_that_begin_alike_have_different_names():
    axes = grid(f"k={'x' * 200}1,{'x' * 200}2")
    assert len({run_name("e", axes, setting) for setting in grid_settings(axes)}) == 2


def test_keys_are_shortened_as_far_as_they_differ():
    axes = grid("stages.head.epochs=1", "stages.tail.epochs=2")
    assert list(short_keys(axes).values()) == ["head.epochs", "tail.epochs"]


def test_the_value_of_a_run_is_the_best_of_its_last_validated_stage(tmp_path):
    from zoo.sweep.children import FitRun

    run = tmp_path / "2026-01-01_00-00-00"
    run.mkdir()
    rows = ["stage,val/x,step", "0,,0", ",0.9,1", "1,,2", "2,,2", ",0.5,3", ",0.7,4", ",0.6,5", "3,,6", ",,6", ",0.8"]
    (run / "metrics.csv").write_text("\n".join(rows))  # the last row is being written
    assert read_validations(run / "metrics.csv", "val/x") == [(0, 0.9), (2, 0.5), (2, 0.7), (2, 0.6)]
    assert FitRun(tmp_path, [], "val/x").value() == 0.7
    assert FitRun(tmp_path, [], "val/y").value() is None


def test_options(tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--grid", "a=1"], "needs an experiment"),
        (["--config=no.yaml", "--grid", "a=1"], "no such configuration: no.yaml"),
        (["--config=e.yaml"], "varies something"),
        (["--config=e.yaml", "--grid", "a=1", "--search", "b=1..2"], "takes one of them"),
        (["--config=e.yaml", "--search", "b=1..2"], "--search needs --trials"),
        (["--config=e.yaml", "--grid", "a=1", "--seeds=0"], "--seeds=0 is not a number"),
        (["--config=e.yaml", "--grid", "a=1", "--prune=maybe"], "neither true nor false"),
        (["--config=e.yaml", "--grid", "a=1", "--timeout=soon"], "is no time"),
        (["--config=e.yaml", "--grid", "a=1", "--name=mine"], "--name=mine is for the sweep to set"),
        (["--config=e.yaml", "--grid", "a=1", "a+b=1"], "varied twice: a"),
        (["--config=e.yaml", "--grid", "a=1", "a=2"], "varied twice: a"),
        (["--config=e.yaml", "--grid", "a=1", "--grid", "b=3", "a=1"], "varied twice: a"),
        (["--config=e.yaml", "--grid", "seed_everything=1,2"], "seed_everything is for the sweep to set: use --seeds"),
        (["--config=e.yaml", "--grid", "x+name=1,2"], "name is for the sweep to set: it gives"),
        (["--config=e.yaml", "--grid", "runs=a,b"], "runs is for the sweep to set"),
        (["--config=e.yaml", "--grid", "ckpt_path=a,b"], "ckpt_path is for the sweep to set"),
        (["--config=e.yaml", "--search", "ckpt=a|b", "--trials=2"], "ckpt is for the sweep to set"),
        (["--config=e.yaml", "--grid", "config=a,b"], "config is for the sweep to set: use --config FILE"),
        (["--config=e.yaml", "--grid", "a=1", "--timeout=-5m"], "--timeout=-5m is no time"),
        (["--config=e.yaml", "--grid", "a=1", "--timeout=nan"], "is no time"),
        (["stray", "--config=e.yaml", "--grid", "a=1"], "'stray' belongs to no option"),
        (["--sweep=no.yaml"], "no such sweep: no.yaml"),
    ],
)
def test_mistakes(args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text("{}")
    with pytest.raises(UserError, match=re.escape(said)):
        read_plan(args)


def test_a_sweep_in_a_file_and_options_that_override_it(tmp_path, monkeypatch):
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
    with pytest.raises(UserError, match="unknown key 'sedes'"):
        read_plan(["--sweep", "sweeps/s.yaml"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seeds: [0, 1]", "--seeds=[0, 1] is not a number"),
        ("trials: 2.7", "--trials=2.7 is not a number"),
        ("config: 3", "`config` is a file or a list of files"),
        ("config: [3]", "`config` is a file or a list of files"),
        ("options: --data=Sample", "`options` is a list"),
        ("options: {--data: Sample}", "`options` is a list"),
        ("options: [--data: Sample]", "`options` is a list"),
        ("grid: {name: [x, y]}", "name is for the sweep to set"),
        ("# \xe4", "s.yaml is not text in UTF-8"),
    ],
)
def test_mistakes_in_a_file(line, said, tmp_path):
    (tmp_path / "e.yaml").write_text("{}")
    key = line.partition(":")[0]
    content = {"config": "config: e.yaml", "grid": "grid: {a: [1]}"} | {key: line}
    (tmp_path / "s.yaml").write_text("\n".join(content.values()), "latin1")
    with pytest.raises(UserError, match=re.escape(said)):
        read_plan([f"--sweep={tmp_path}/s.yaml"])


def test_starting_is_fast():
    code = (
        "import sys, zoo.sweep; slow = {'torch', 'pytorch_lightning', 'optuna', 'callbacks', 'heads'}; "
        "sys.exit(str(slow & set(sys.modules)) if slow & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_grid_is_run_in_order_with_all_seeds_and_compared(sweeps):
    out, err = sweeps.run("--grid", "x=1,3,5", "y=a,b", "--seeds=2")
    names = sweeps.starts()
    expected = [f"seed{seed}/exp_x-{x}_y-{y}" for x in (1, 3, 5) for y in "ab" for seed in (0, 1)]
    assert [name.rsplit("_", 1)[0] for name in names] == expected
    assert "compared 12 data,x,y" in out
    assert out.splitlines()[-2:] == [
        "best val/nDCG@5, 1.0105: x=3, y=a",
        "python -m zoo fit --config exp.yaml --x=3 --y=a",
    ]
    assert "x=1, y=a, seed 1: val/nDCG@5 0.9710" in err
    sweeps.run("--grid", "x=1,3,5", "y=a,b", "--seeds=2")
    assert len(sweeps.starts()) == 12


def test_the_runs_of_a_setting_have_one_name_so_that_their_folder_compares_by_setting(sweeps):
    from zoo.compare.comparison import compare_runs
    from zoo.results import read_runs

    sweeps.run("--grid", "x=1,3", "--seeds=3")
    (part,) = compare_runs(read_runs([sweeps.folder / "out"])).parts
    assert [len(row.runs) for row in part.rows] == [3, 3]
    assert [row.name.rsplit("_", 1)[0] for row in part.rows] == ["exp_x-1", "exp_x-3"]
    assert len(list(sweeps.folder.glob("out/runs/seed[012]/exp_x-[13]_*/fit.log"))) == 6


def test_more_seeds_are_added_to_what_is_there(sweeps):
    sweeps.run("--grid", "x=1,3", "--seeds=1")
    out, _ = sweeps.run("--grid", "x=1,3", "--seeds=3")
    assert Counter(name[:5] for name in sweeps.starts()) == {"seed0": 2, "seed1": 2, "seed2": 2}
    assert "compared 6" in out
    assert "best val/nDCG@5, 1.0110" in out


GRID = ("--grid", "x=1,2,3,4", "--seeds=2")
SEARCH = ("--search", "x=-5..5", "z=1e-4..1e-2:log", "--trials=14")


@pytest.mark.parametrize(("args", "starts"), [(GRID, 5), (SEARCH, 13)], ids=["grid", "search"])
def test_a_sweep_that_was_killed_repeats_the_cut_run_alone_and_ends_the_same(sweeps, tmp_path, args, starts):
    (tmp_path / "whole").mkdir()
    whole = Sweeps(tmp_path / "whole")
    expected, _ = whole.run(*args, f"--hold={-starts}")
    sweeps.cut(*args, starts=starts)
    before = sweeps.starts()
    assert len(before) == starts
    sweeps.release()
    said, _ = sweeps.run(*args, f"--hold={starts}")
    assert sweeps.starts() == [*before, before[-1], *whole.starts()[starts:]]
    assert sweeps.table() == whole.table()
    assert said == expected.replace(f"--hold={-starts}", f"--hold={starts}")


def test_more_trials_are_added_to_a_search(sweeps):
    sweeps.run("--search", "x=0.0..9.0", "--trials=2")
    first = sweeps.table()
    sweeps.run("--search", "x=0.0..9.0", "--trials=4")
    assert len(sweeps.starts()) == 4
    assert sweeps.table()[:2] == first
    assert [row[0] for row in sweeps.table()] == ["0", "1", "2", "3"]


def test_it_goes_on_after_a_run_that_fails_and_tries_it_again_at_the_next_start(sweeps):
    args = ("--grid", "x=1,2,3", "--fail=2")
    out, err = sweeps.run(*args, code=1)
    assert [row[1] for row in sweeps.table()] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "compared 2" in out
    failed = [line for line in err.splitlines() if "failed" in line]
    assert len(failed) == 2
    assert all("x is not to my taste (" in line and "fit.log)" in line for line in failed)
    sweeps.run(*args, code=1)
    assert len(sweeps.starts()) == 4
    (sweeps.folder / "mended").touch()
    sweeps.run(*args)
    assert len(sweeps.starts()) == 5
    assert [row[:3] for row in sweeps.table()] == [[str(n), "COMPLETE", str(n + 1)] for n in range(3)]


def test_pruning_stops_a_run_that_lags_behind(sweeps):
    began = time.monotonic()
    args = ("--grid", "x=3,3.1,3.2,3.3,3.4,9,2.9", "--prune", "--epochs=3", "--pause=0.1", "--seeds=2")
    out, err = sweeps.run(*args)
    assert time.monotonic() - began < 30
    assert [row[1] for row in sweeps.table()] == [*["COMPLETE"] * 5, "PRUNED", "COMPLETE"]
    assert "x=9, seed 0: pruned" in err
    assert "compared 12" in out
    (place,) = (sweeps.folder / "out" / "runs").glob("*/exp_x-9_*")
    assert not list(place.glob("*/metrics.json"))
    starts = sweeps.starts()
    sweeps.run(*args)
    assert sweeps.starts() == starts


def test_a_child_that_does_not_stop_when_pruned_is_killed(sweeps):
    args = ("--grid", "x=3,3.1,3.2,3.3,3.4,9", "--prune=true", "--stubborn=1", "--hold=6")
    _, err = sweeps.run(*args)
    assert "x=9, seed 0: pruned" in err


@pytest.mark.parametrize("storage", ["sqlite:///study.db", "study.journal"])
def test_two_workers_share_a_study_and_do_nothing_twice(sweeps, storage):
    args = ("--grid", "x=1,2,3,4,5,6,7,8", "--pause=0.1", f"--storage={storage}")
    both = [sweeps.start(*args), sweeps.start(*args)]
    said = [sweep.communicate(timeout=60) for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], said
    assert len(sweeps.starts()) == len(set(sweeps.starts())) == 8
    assert all("compared 8" in out for out, _ in said)
    assert all(err.count(": val/nDCG@5") >= 1 for _, err in said)


def test_workers_with_folders_of_their_own_share_a_study(sweeps):
    args = ("--search", "x=0.0..9.0", "--trials=6", "--pause=0.2", "--storage=sqlite:///study.db")
    both = [sweeps.start(*args, out=out) for out in ("one", "two")]
    said = [sweep.communicate(timeout=60) for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], said
    runs = [len(list(sweeps.folder.glob(f"{out}/runs/*/*/*/metrics.json"))) for out in ("one", "two")]
    assert sum(runs) == len(sweeps.starts()) == 6
    assert all(runs)


def test_several_jobs_at_once(sweeps):
    out, _ = sweeps.run("--grid", "x=1,2,3,4,5,6", "--jobs=3", "--pause=0.1")
    assert len(sweeps.starts()) == len(set(sweeps.starts())) == 6
    assert "compared 6" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_children_and_says_how_to_go_on(sweeps, number, code):
    args = ("--grid", "x=1,2,3", "--hold=2")
    sweep = sweeps.start(*args)
    sweeps.wait_for_starts(2)
    time.sleep(0.2)
    sweep.send_signal(number)
    _, err = sweep.communicate(timeout=20)
    assert sweep.returncode == code
    assert "to go on: python -m zoo sweep --config exp.yaml --out=out --grid x=1,2,3 --hold=2" in err
    sweeps.release()
    sweeps.run(*args)
    assert Counter(Counter(sweeps.starts()).values()) == {1: 2, 2: 1}


def test_a_child_that_outlives_a_killed_sweep_is_waited_for(sweeps):
    args = ("--grid", "x=1,2", "--stubborn=1")
    sweeps.cut(*args, starts=2)
    again = sweeps.start(*args, "--hold=2")
    line = next(line for line in again.stderr if "waiting" in line)
    assert "x=2, seed 0: waiting for a process that is still at it" in line
    sweeps.release()
    out, _ = again.communicate(timeout=20)
    assert again.returncode == 0
    assert len(sweeps.starts()) == 2
    assert "compared 2" in out


def test_another_config_other_keys_and_other_options_are_refused_in_the_same_folder(sweeps):
    sweeps.run("--grid", "x=1")
    _, err = sweeps.run("--grid", "x=2", code=2)
    said = "out has a sweep with another order of keys, or other keys or values: give this one another --out"
    assert err == f"error: {said}\n"
    assert "another options" in sweeps.run("--grid", "x=1", "--pause=0", code=2)[1]
    sweeps.run("--grid", "x=1", "--wandb.mode=disabled", "--jobs=2")
    (sweeps.folder / "exp.yaml").write_text("data: {class_path: Reuters}\n")
    assert "another content of the experiment" in sweeps.run("--grid", "x=1", code=2)[1]
    assert len(sweeps.starts()) == 1


def test_another_order_and_another_kind_are_refused_in_the_same_folder(sweeps):
    sweeps.run("--grid", "x=1,2", "y=a,b")
    assert "another order of keys" in sweeps.run("--grid", "y=a,b", "x=1,2", code=2)[1]
    _, err = sweeps.run("--search", "x=1,2", "y=a,b", "--trials=4", code=2)
    assert "out has a sweep with another kind, grid or search: give this one another --out" in err
    assert len(sweeps.starts()) == 4


def test_a_changed_part_of_the_experiment_is_noticed(sweeps):
    (sweeps.folder / "exp.yaml").write_text("data: data.yaml\n")
    (sweeps.folder / "data.yaml").write_text("class_path: Sample\n")
    sweeps.run("--grid", "x=1")
    (sweeps.folder / "data.yaml").write_text("class_path: Reuters\n")
    assert "another content" in sweeps.run("--grid", "x=1", code=2)[1]


def test_what_fit_does_not_accept_is_said_before_anything_starts(sweeps):
    _, err = sweeps.run("--grid", "wrong=1,2,3", code=2)
    assert err.splitlines()[-1] == "error: zoo fit does not accept the first setting: key 'wrong' is not accepted"
    assert sweeps.starts() == []
    assert not (sweeps.folder / "out").exists()


@pytest.mark.parametrize("storage", ["nosuch://x", "sqlite:///no/such/folder.db", "exp.yaml", "exp.yaml/x"])
def test_a_storage_that_cannot_be_opened_is_refused_and_nothing_is_left(sweeps, storage):
    before = {path: path.read_text() for path in sweeps.folder.iterdir()}
    _, err = sweeps.run("--grid", "x=1", f"--storage={storage}", code=2)
    assert err.splitlines()[-1].startswith("error: --storage=")
    assert {path: path.read_text() for path in sweeps.folder.iterdir()} == before


@pytest.mark.parametrize("out", ["exp.yaml", "exp.yaml/x"])
def test_a_folder_that_cannot_be_made_is_refused_at_once(sweeps, out):
    _, err = sweeps.run("--grid", "x=1", out=out, code=2)
    assert re.fullmatch(rf"error: --out={out}: .*exp.yaml is not a folder that can be written to\n", err)


def test_a_lock_that_cannot_be_made_is_a_mistake_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/x"):
        with pytest.raises(UserError, match="choose another folder with --out"):
            Lock(tmp_path / place / "sweep.lock")


def test_an_experiment_that_is_not_utf8_is_refused(sweeps):
    (sweeps.folder / "exp.yaml").write_bytes(b"# \xe4\n")
    _, err = sweeps.run("--grid", "x=1", code=2)
    assert err == "error: exp.yaml is not text in UTF-8\n"


def test_without_validations_a_grid_has_its_table_and_a_search_ends(sweeps):
    out, err = sweeps.run("--grid", "x=1,2", "--column=other")
    assert "x=1, seed 0: no validation value" in err
    assert "compared 2" in out
    assert "best" not in out
    assert [row[1:] for row in sweeps.table()] == [["COMPLETE", "1", ""], ["COMPLETE", "2", ""]]
    _, err = sweeps.run("--search", "x=1..9", "--trials=3", "--column=other", out="other", code=2)
    assert "error: a search goes by val/nDCG@5, which" in err
    assert len(sweeps.starts()) == 3


def test_no_run_begins_after_the_time_is_up(sweeps):
    _, err = sweeps.run("--grid", "x=1,2,3,4", "--timeout=0.3", "--pause=0.4")
    assert "the time is up: 3 settings are left" in err
    assert len(sweeps.starts()) == 1
    sweeps.run("--grid", "x=1,2,3,4", "--pause=0.4")
    assert len(sweeps.starts()) == 4


def test_a_key_that_the_table_does_not_know_does_not_cost_the_table(monkeypatch, capsys):
    from zoo.sweep import show_table

    asked = []

    def compare(runs, by="data,experiment"):
        asked.append(by)
        if "callbacks" in by:
            raise UserError("--by: there is no 'trainer.callbacks.copies' in these runs")

    monkeypatch.setitem(sys.modules, "zoo.compare", types.SimpleNamespace(compare=compare))
    show_table(["run"], ["trainer.callbacks.copies"])
    assert asked == ["data,trainer.callbacks.copies", "data,experiment"]
    assert "a row for each setting instead" in " ".join(capsys.readouterr().err.split())
