"""Beginning at a stage, and going on with a run."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest
import torch

from tests.cli.stages.recording import (
    BATCHES,
    Odd,
    Recorder,
    checkpoint,
    ckpt,
    differing,
    kinds,
    parameters,
    recorded,
    rows_of,
    weights,
    with_transfer,
)
from tests.support.output import line_with
from zoo.core.run_lock import lock_run

# --- beginning at a stage


@pytest.mark.parametrize("own", [True, False], ids=["with-config", "from-the-checkpoint-alone"])
def test_from_stage_begins_there_with_the_weights_given(config, go, own, capsys):
    path = config("\n  - {name: a, epochs: 1}\n  - {name: b, on_enter: [double]}\n  - {name: c, epochs: 1, lr: 0.01}")
    first = go(path)
    Recorder.batches.clear()
    Recorder.weights.clear()
    capsys.readouterr()
    trust = [] if own else ["--trust=tests.cli.stages.recording"]
    second = go(path if own else None, "--from_stage=b", f"--ckpt={ckpt(first, 'a')}", *trust, name="again")
    assert set(recorded("stage")) == {"c"}
    expected = weights(first, "a")
    expected["head.classifier.weight"] = 2 * expected["head.classifier.weight"]
    assert differing(expected, Recorder.weights[0]) == set()
    assert len(recorded("lr")["c"]) == BATCHES
    assert parameters(differing(weights(first, "last"), weights(second, "last"))) != set()  # other batches
    table = [line.strip("│").split("│")[0].strip() for line in capsys.readouterr().err.splitlines() if "│" in line]
    assert [(name[0], len(name) > 1) for name in table] == [("a", False), ("b", True), ("c", False)]  # b is marked
    assert not (second / "checkpoints" / "a.ckpt").exists()


def test_from_stage_refuses_what_does_not_fit(config, go, refused):
    path = config()
    first = ckpt(go(path), "first")
    refused(path, "--from_stage=second", names=["--from_stage", "--ckpt"])
    refused(path, f"--ckpt={first}", names=["--from_stage", "--ckpt"])
    refused(path, "--from_stage=third", f"--ckpt={first}", names=["--from_stage=third", "first, second"])
    refused(path, "--from_stage=second", "--ckpt=nowhere.ckpt", names=["nowhere.ckpt"])
    refused(path, "--from_stage=second", f"--ckpt={first}", "--data.num_labels=14", names=["labels"])


def test_weights_of_another_shape_start_anew_and_are_named(config, go, capsys):
    path = config()
    first = go(path)
    Recorder.weights.clear()
    go(path, "--from_stage=second", f"--ckpt={ckpt(first, 'first')}", "--model.head.hidden=5", name="wider")
    named = re.findall(r"\b(?:head|backbone)\.[\w.]+", line_with(capsys.readouterr().err, "head.project.weight"))
    assert set(named) == {"head.project.weight", "head.project.bias", "head.classifier.weight"}
    start, given = Recorder.weights[0], weights(first, "first")
    assert all(torch.equal(start[name], given[name]) for name in given if name.startswith("backbone."))


# --- going on with a run


def test_a_resume_without_a_run_or_a_checkpoint_begins_one(config, go, capsys):
    path = config()
    folder = go(path, "--ckpt_path=last")
    assert len(Recorder.batches) == 3 * BATCHES
    whole, shown = kinds(folder), capsys.readouterr().err.splitlines()
    shutil.rmtree(folder / "checkpoints")
    Recorder.batches.clear()
    assert go(path, "--ckpt_path=last") == folder
    again = capsys.readouterr().err.splitlines()
    assert any(str(folder) in line and line not in shown for line in again)  # a note
    assert len(Recorder.batches) == 3 * BATCHES
    assert kinds(folder) == whole  # no row of the former attempt is left


def test_a_run_that_another_process_trains_is_refused(config, go, fails, tmp_path):
    path = config("\n  - {name: first, epochs: 1}")
    folder = go(path)  # which leaves no lock
    lock = lock_run(folder)
    given = [f"--config={path}", f"--runs={tmp_path / 'runs'}", "--name=staged", "--ckpt_path=last"]
    fails("fit", *given, names=[folder, os.getpid(), "--ckpt_path"])
    lock.release()
    go(path, "--ckpt_path=last")


def test_a_finished_run_is_only_tested_again(config, go, read_metrics):
    stages = """
  - {name: first, epochs: 1, trainable: ["head.*"], groups: {"*.bias": {lr: 0.1}}}
  - {name: end, on_enter: [double]}
"""
    path = config(stages)
    folder = go(path)
    metrics, rows, last = read_metrics(folder)["metrics"], rows_of(folder), weights(folder, "last")
    (folder / "metrics.json").unlink()
    Recorder.batches.clear()
    go(path, "--ckpt_path=last")
    assert Recorder.batches == []
    assert read_metrics(folder)["metrics"] == metrics
    assert differing(last, weights(folder, "last")) == set()
    assert rows_of(folder) == rows


@pytest.mark.kill
def test_a_killed_run_goes_on_in_its_folder_with_every_row_once_and_its_best_score(config, go, read_metrics):
    stages = """
  - {name: first, epochs: 1}
  - {name: peak, epochs: 3, optimizer: {class_path: Adam, init_args: {lr: 0.2}}}
"""  # so high a rate overshoots: the best epoch is not the last
    path = config(stages)
    whole = go(path, name="whole")
    Recorder.batches.clear()
    for kill in (2, BATCHES + 2, 3 * BATCHES + 4):  # in the first epoch, after a transition, after the best epoch
        Recorder.kill_at = kill
        with pytest.raises(RuntimeError, match="killed"):
            go(path, "--ckpt_path=last", name="cut")
        del Recorder.batches[kill // BATCHES * BATCHES :]
    Recorder.kill_at = None
    cut = go(path, "--ckpt_path=last", name="cut")
    assert rows_of(cut) == rows_of(whole)
    assert checkpoint(cut, "best")["epoch"] == checkpoint(whole, "best")["epoch"] < 3
    assert read_metrics(cut)["metrics"] == read_metrics(whole)["metrics"]
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()


@pytest.mark.kill
@pytest.mark.parametrize(
    ("stop", "args"),
    [(7, ["--trainer.accumulate_grad_batches=2"]), (1, ["--trainer.val_check_interval=2"])],
    ids=["while-gradients-accumulate", "before-a-validation-inside-an-epoch"],
)
def test_sigterm_stops_after_a_batch_and_loses_no_row(config, go, stop, args):
    path = config()
    whole = go(path, *args, name="whole")
    Recorder.batches.clear()
    Recorder.stop_at = stop
    with pytest.raises(SystemExit) as left:
        go(path, *args, name="cut")
    assert left.value.code == 128 + signal.SIGTERM
    assert stop < len(Recorder.batches) <= stop + 2
    Recorder.stop_at = None
    cut = go(path, *args, "--ckpt_path=last", name="cut")
    assert kinds(cut) == kinds(whole)
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()
    assert differing(weights(whole, "best"), weights(cut, "best")) == set()


@pytest.mark.kill
def test_ctrl_c_saves_after_the_step_and_a_second_one_stops_at_once(config, go, capsys):
    path = config()
    whole = go(path, name="whole")
    Recorder.batches.clear()
    for presses, batches, step in ((1, 3, 3), (2, 2, BATCHES)):  # the last one resumes and ends an epoch
        Recorder.stop_at, Recorder.stop_by = 2, (signal.SIGINT,) * presses
        with pytest.raises(SystemExit) as left:
            go(path, "--ckpt_path=last", name="cut")
        assert left.value.code == 128 + signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        (cut,) = (path.parent / "runs" / "cut").iterdir()
        assert checkpoint(cut, "last")["global_step"] == step
        assert len(Recorder.batches) == batches
        assert ("--ckpt_path last" in line_with(capsys.readouterr().err, "stopped")) == (presses == 1)
        Recorder.batches.clear()
    Recorder.stop_at = None
    cut = go(path, "--ckpt_path=last", name="cut")
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()


@pytest.mark.kill
def test_ctrl_c_in_a_transition_stops_without_saving(config, go, monkeypatch, capsys):
    def pressed(self, ctx):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in ctx.track(range(3), "reading"):
            pytest.fail("it goes on")

    path = config("\n  - {name: first, epochs: 1}\n  - {name: second, epochs: 1, on_enter: [double]}")
    monkeypatch.setattr(Odd, "double", pressed)
    with pytest.raises(SystemExit) as left:
        go(path)
    assert left.value.code == 128 + signal.SIGINT
    assert "--ckpt_path last" in line_with(capsys.readouterr().err, "stopped")


def test_the_written_config_repeats_a_staged_run(config, go, read_metrics):
    first = go(
        with_transfer(config), "--stages.finetune.groups={head.*: {lr: 1e-3}}", "--stages.finetune.optimizer=SGD"
    )
    again = go(first / "config.yaml", name="again")
    assert read_metrics(again)["metrics"] == read_metrics(first)["metrics"]
    assert differing(weights(first, "last"), weights(again, "last")) == set()


DAMAGE = {  # values in the states of a run, and what an error has to mention
    "callbacks/StageSchedule/first_epoch": ("0", "first_epoch"),
    "callbacks/ModelCheckpoint/kth_best_model_path": ("/etc/passwd", "'/etc/passwd'"),
    "optimizer_states": ([], "optimizers"),
    "optimizer_states/0/state/1/exp_avg_sq/0": (float("inf"), "NaN or infinite"),
}


def test_damaged_states_of_a_run_are_refused(config, go, capsys):
    path = config()
    last = go(path, name="cut") / "checkpoints" / "last.ckpt"
    good = last.read_bytes()
    for where, (value, part) in DAMAGE.items():
        last.write_bytes(good)
        content = place = torch.load(last, weights_only=True)
        *parents, key = where.split("/")
        for parent in parents:
            names = (
                [name for name in place if str(name).startswith(parent)] if isinstance(place, dict) else [int(parent)]
            )
            place = place[names[0]]
        place[int(key) if isinstance(place, list | torch.Tensor) else key] = value
        torch.save(content, last)
        with pytest.raises(SystemExit) as left:
            go(path, "--ckpt_path=last", name="cut")
        assert left.value.code == 2, where
        assert part in line_with(capsys.readouterr().err, "error:"), where
