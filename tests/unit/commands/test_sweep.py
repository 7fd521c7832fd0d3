"""Sweeps with a stand-in for `zoo fit`: what is run, resumed and refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import types
from collections import Counter

import pytest

from tests.support.errors import assert_message, raises
from tests.support.sweeps import Sweeps
from zoo.core.errors import UserError
from zoo.sweeps.children import Lock


@pytest.fixture
def sweeps(tmp_path) -> Sweeps:
    return Sweeps(tmp_path)


def test_starting_is_fast():
    code = (
        "import sys, zoo.commands.sweep; slow = {'torch', 'pytorch_lightning', 'optuna', 'callbacks', 'heads'}; "
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
        "zoo fit --config exp.yaml --x=3 --y=a",
    ]
    assert "x=1, y=a, seed 1: val/nDCG@5 0.9710" in err
    sweeps.run("--grid", "x=1,3,5", "y=a,b", "--seeds=2")
    assert len(sweeps.starts()) == 12


def test_the_runs_of_a_setting_share_a_name_and_are_compared_as_one_row(sweeps):
    from zoo.analysis.comparison import compare_runs
    from zoo.core.run_search import read_runs

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
def test_a_killed_sweep_resumes_with_the_interrupted_run_and_ends_the_same(sweeps, tmp_path, args, starts):
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


def test_a_failed_run_does_not_stop_a_sweep_and_is_retried_when_it_is_resumed(sweeps):
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


def test_pruning_stops_a_run_that_falls_behind(sweeps):
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
def test_two_processes_share_a_study_and_run_nothing_twice(sweeps, storage):
    args = ("--grid", "x=1,2,3,4,5,6,7,8", "--pause=0.1", f"--storage={storage}")
    both = [sweeps.start(*args), sweeps.start(*args)]
    said = [sweep.communicate(timeout=60) for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], said
    assert len(sweeps.starts()) == len(set(sweeps.starts())) == 8
    assert all("compared 8" in out for out, _ in said)
    assert all(err.count(": val/nDCG@5") >= 1 for _, err in said)


def test_processes_with_different_folders_share_a_study(sweeps):
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
def test_a_signal_stops_children_and_the_sweep_can_be_resumed(sweeps, number, code):
    args = ("--grid", "x=1,2,3", "--hold=2")
    sweep = sweeps.start(*args)
    sweeps.wait_for_starts(2)
    time.sleep(0.2)
    sweep.send_signal(number)
    _, err = sweep.communicate(timeout=20)
    assert sweep.returncode == code
    assert "zoo sweep --config exp.yaml --out=out --grid x=1,2,3 --hold=2" in err
    sweeps.release()
    sweeps.run(*args)
    assert Counter(Counter(sweeps.starts()).values()) == {1: 2, 2: 1}


def test_a_child_that_outlives_a_killed_sweep_is_waited_for(sweeps):
    args = ("--grid", "x=1,2", "--stubborn=1")
    sweeps.cut(*args, starts=2)
    again = sweeps.start(*args, "--hold=2")
    line = next(line for line in again.stderr if "waiting" in line)
    assert "x=2, seed 0" in line
    sweeps.release()
    out, _ = again.communicate(timeout=20)
    assert again.returncode == 0
    assert len(sweeps.starts()) == 2
    assert "compared 2" in out


def test_a_folder_with_another_config_keys_or_options_is_refused(sweeps):
    sweeps.run("--grid", "x=1")
    _, err = sweeps.run("--grid", "x=2", code=2)
    assert_message(err.strip(), "out", "keys", "--out")
    assert "different options" in sweeps.run("--grid", "x=1", "--pause=0", code=2)[1]
    sweeps.run("--grid", "x=1", "--wandb.mode=disabled", "--jobs=2")
    (sweeps.folder / "exp.yaml").write_text("data: {class_path: Reuters}\n")
    assert "different config" in sweeps.run("--grid", "x=1", code=2)[1]
    assert len(sweeps.starts()) == 1


def test_a_folder_with_another_order_or_kind_is_refused(sweeps):
    sweeps.run("--grid", "x=1,2", "y=a,b")
    assert "different keys" in sweeps.run("--grid", "y=a,b", "x=1,2", code=2)[1]
    assert "different kind" in sweeps.run("--search", "x=1,2", "y=a,b", "--trials=4", code=2)[1]
    assert len(sweeps.starts()) == 4


def test_a_change_in_an_included_file_is_noticed(sweeps):
    (sweeps.folder / "exp.yaml").write_text("data: data.yaml\n")
    (sweeps.folder / "data.yaml").write_text("class_path: Sample\n")
    sweeps.run("--grid", "x=1")
    (sweeps.folder / "data.yaml").write_text("class_path: Reuters\n")
    assert "different config" in sweeps.run("--grid", "x=1", code=2)[1]


def test_an_invalid_configuration_is_refused_before_anything_starts(sweeps):
    _, err = sweeps.run("--grid", "wrong=1,2,3", code=2)
    assert err.splitlines()[-1].endswith("key 'wrong' is not accepted")
    assert sweeps.starts() == []
    assert not (sweeps.folder / "out").exists()


@pytest.mark.parametrize("storage", ["nosuch://x", "sqlite:///no/such/folder.db", "exp.yaml", "exp.yaml/x"])
def test_an_invalid_storage_is_refused_and_leaves_no_files(sweeps, storage):
    before = {path: path.read_text() for path in sweeps.folder.iterdir()}
    _, err = sweeps.run("--grid", "x=1", f"--storage={storage}", code=2)
    assert err.splitlines()[-1].startswith("error: --storage=")
    assert {path: path.read_text() for path in sweeps.folder.iterdir()} == before


@pytest.mark.parametrize("out", ["exp.yaml", "exp.yaml/x"])
def test_an_invalid_folder_is_refused(sweeps, out):
    _, err = sweeps.run("--grid", "x=1", out=out, code=2)
    assert_message(err.strip(), f"--out={out}", "exp.yaml")


def test_a_lock_that_cannot_be_created_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/x"):
        with raises(UserError, "sweep.lock", "`out`"):
            Lock(tmp_path / place / "sweep.lock")


def test_an_experiment_that_is_not_utf8_is_refused(sweeps):
    (sweeps.folder / "exp.yaml").write_bytes(b"# \xe4\n")
    _, err = sweeps.run("--grid", "x=1", code=2)
    assert err == "error: exp.yaml is not UTF-8 text\n"


def test_without_validation_results_a_grid_is_compared_and_a_search_fails(sweeps):
    out, err = sweeps.run("--grid", "x=1,2", "--column=other")
    assert "x=1, seed 0: no validation result" in err
    assert "compared 2" in out
    assert "best" not in out
    assert [row[1:] for row in sweeps.table()] == [["COMPLETE", "1", ""], ["COMPLETE", "2", ""]]
    _, err = sweeps.run("--search", "x=1..9", "--trials=3", "--column=other", out="other", code=2)
    assert "--metric=val/nDCG@5" in err
    assert len(sweeps.starts()) == 3


def test_no_run_starts_after_the_timeout(sweeps):
    _, err = sweeps.run("--grid", "x=1,2,3,4", "--timeout=0.3", "--pause=0.4")
    assert "3 trials left" in err
    assert len(sweeps.starts()) == 1
    sweeps.run("--grid", "x=1,2,3,4", "--pause=0.4")
    assert len(sweeps.starts()) == 4


def test_a_key_that_runs_do_not_have_falls_back_to_a_comparison_by_experiment(monkeypatch):
    from zoo.commands.sweep import show_table

    asked = []

    def compare(runs, by="data,experiment", partial=False):
        asked.append(by)
        if "callbacks" in by:
            raise UserError("--by: there is no 'trainer.callbacks.copies' in these runs")

    monkeypatch.setitem(sys.modules, "zoo.commands.compare", types.SimpleNamespace(compare=compare))
    show_table(["run"], ["trainer.callbacks.copies"])
    assert asked == ["data,trainer.callbacks.copies", "data,experiment"]
