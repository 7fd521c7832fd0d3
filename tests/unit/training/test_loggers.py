"""Run folders, and logs that a continued run adds to."""

import csv
import os
import re
import shlex
import warnings

import pytest

from zoo.core.run_folder import RunFolder
from zoo.training.loggers import (
    FOLDER_VARIABLE,
    WandbSettings,
    close_run,
    make_loggers,
    newest_run,
    run_folder,
)

OFF = WandbSettings(mode="disabled")


@pytest.fixture(autouse=True)
def _one_process(clean_environment, monkeypatch):
    for name in (FOLDER_VARIABLE, "WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_ID", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    close_run()


def log(folder, *rows):
    (logger,) = make_loggers(folder, "run", OFF)
    for step, values in rows:
        logger.log_metrics(values, step)
    logger.finalize("success")


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def make_runs(root, *names):
    for name in names:
        (root / "exp" / name).mkdir(parents=True)


def test_the_newest_run_is_by_time_then_number(tmp_path):
    assert newest_run(str(tmp_path), "exp", False) is None
    time = "2026-01-02_10-00-00"
    make_runs(tmp_path, "2025-12-31_23-59-59-3", time, f"{time}-2", f"{time}-10", "best", f"{time}-old", "9999")
    make_runs(tmp_path, "2026-01-03_10-00-00-sample", "2026-01-03_10-00-00-sample-2")
    (tmp_path / "exp" / "2027-01-01_00-00-00").write_text("a file")
    assert newest_run(str(tmp_path), "exp", False) == tmp_path / "exp" / f"{time}-10"
    assert newest_run(str(tmp_path), "exp", True) == tmp_path / "exp" / "2026-01-03_10-00-00-sample-2"
    assert newest_run(str(tmp_path), "other", False) is None


def test_resume_takes_the_newest_folder_and_says_so(tmp_path, capsys):
    first = run_folder(str(tmp_path), "exp", False, resume=True)
    assert first.is_dir()
    assert "continuing" not in capsys.readouterr().err
    close_run()
    assert run_folder(str(tmp_path), "exp", False, resume=True) == first
    assert f"the run in {first}" in capsys.readouterr().err.replace("\n", "")
    assert os.environ[FOLDER_VARIABLE] == str(first)
    make_runs(tmp_path, "9999-01-01_00-00-00")
    assert run_folder(str(tmp_path), "exp", False, resume=True) == first  # a child of the launcher inherits it
    close_run()
    assert run_folder(str(tmp_path), "exp", False) not in (first, tmp_path / "exp" / "9999-01-01_00-00-00")


def test_a_continued_run_adds_rows_and_columns_without_a_warning(tmp_path):
    log(tmp_path, (0, {"b": 1.0}), (1, {"c": 2.0}))
    (tmp_path / "checkpoints").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log(tmp_path, (2, {"a": 3.0}), (3, {"b": 4.0}))
        log(tmp_path, (4, {"b": 5.0}))
    assert rows_of(tmp_path) == [
        {"b": "1.0", "step": "0"},
        {"c": "2.0", "step": "1"},
        {"a": "3.0", "step": "2"},
        {"b": "4.0", "step": "3"},
        {"b": "5.0", "step": "4"},
    ]


def test_a_row_is_in_the_file_at_once(tmp_path):
    (logger,) = make_loggers(tmp_path, "run", OFF)
    logger.log_metrics({"a": 1.0}, 4)
    assert rows_of(tmp_path) == [{"a": "1.0", "step": "4"}]


@pytest.mark.parametrize("cut", ["", "a,st", "a,step\r\n", "a,step\r\n7"])
def test_a_file_without_a_whole_row_is_begun_again(tmp_path, cut):
    (tmp_path / "metrics.csv").write_text(cut, newline="")
    log(tmp_path, (1, {"a": 1.0}))
    assert rows_of(tmp_path) == [{"a": "1.0", "step": "1"}]


@pytest.mark.parametrize("cut", ["0.25", "0.25,", "0.25,1"])
def test_a_row_that_was_cut_off_is_dropped(tmp_path, cut):
    (tmp_path / "metrics.csv").write_text(f"a,step\r\n0.5,0\r\n{cut}", newline="")
    log(tmp_path, (1, {"a": 1.0}))
    assert rows_of(tmp_path) == [{"a": "0.5", "step": "0"}, {"a": "1.0", "step": "1"}]


def test_a_header_in_another_order_keeps_values_in_their_columns(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,b,a\n0,2,1\n")
    log(tmp_path, (1, {"a": 3, "b": 4}))
    assert rows_of(tmp_path) == [{"a": "1", "b": "2", "step": "0"}, {"a": "3", "b": "4", "step": "1"}]


def test_rows_after_a_checkpoint_are_dropped(tmp_path):
    RunFolder(tmp_path).drop_log_rows_after(3)  # nothing to drop from
    assert list(tmp_path.iterdir()) == []
    log(tmp_path, (2, {"a": 1.0}), (3, {"b": 2.0}), (4, {"c": 3.0}), (10, {"a": 4.0}))
    RunFolder(tmp_path).drop_log_rows_after(3)
    assert rows_of(tmp_path) == [{"a": "1.0", "step": "2"}, {"b": "2.0", "step": "3"}]
    log(tmp_path, (4, {"c": 5.0}))
    assert rows_of(tmp_path)[2:] == [{"c": "5.0", "step": "4"}]
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.csv"}


def start(folder):
    """Starts, logs one row, and closes; returns the id and the step that the row got."""
    _, wandb = make_loggers(folder, "run", WandbSettings(mode="offline"))
    run = wandb.experiment
    run.log({"a": 1})
    id, step = run.id, run.step - 1
    close_run()
    return id, step


def test_a_continued_run_is_the_same_run_in_wandb(tmp_path, capsys):
    folder = tmp_path / "a run"
    id, step = start(folder)
    assert step == 0
    (former,) = folder.glob("wandb/offline-run-*")
    first = former.rename(former.with_name(f"offline-run-20200101_000000-{id}"))  # not within one second of the other
    (folder / "wandb" / "offline-run-20190101_000000-another").mkdir()
    capsys.readouterr()
    again, later = start(folder)
    assert again == id
    assert later > step  # rows of one step would replace each other
    (second,) = set(folder.glob(f"wandb/offline-run-*-{id}")) - {first}
    commands = re.search(r"upload with: (.*)", capsys.readouterr().err)[1].split("; ")
    assert [shlex.split(command) for command in commands] == [["wandb", "sync", str(p)] for p in (first, second)]


def test_another_rank_has_an_idle_logger_also_in_a_continued_run(tmp_path, monkeypatch):
    (tmp_path / "wandb" / "run-20200101_000000-abc").mkdir(parents=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("wandb.init", lambda **_: pytest.fail("started"))
    assert len(make_loggers(tmp_path, "run", WandbSettings(mode="offline"))) == 2


def test_an_online_run_is_continued_under_its_id(tmp_path, monkeypatch):
    for name in ("run-20200101_000000-old", "run-20200102_000000-new-er", "latest-run"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    given = {}

    def init(**settings):
        given.update(settings)
        raise RuntimeError("seen enough")

    monkeypatch.setattr("wandb.init", init)
    make_loggers(tmp_path, "run", WandbSettings(mode="online"))
    assert given["id"] == "new-er"
    assert given["resume"] == "allow"
