"""Weights that are not finite end a run in one line; neither a checkpoint nor a metric is made of them."""

from __future__ import annotations

import pytest
import torch

from tests.cli.stages.recording import BATCHES, Recorder, ckpt, rows_of, spoil
from zoo.training.checkpoint import read_checkpoint

LAST = 2 * BATCHES - 1  # batch of the first stage: its loss is finite, and no other follows it


@pytest.fixture
def diverges(fails, tmp_path):
    """Train until the run ends in an error; returns its folder and the line."""

    def run(path, *args, names=()):
        given = [f"--config={path}", f"--runs={tmp_path / 'runs'}", "--name=bad"]
        line = fails("fit", *given, *args, names=["finite", *names])
        (folder,) = (tmp_path / "runs" / "bad").iterdir()
        assert not (folder / "metrics.json").exists()
        for file in folder.glob("checkpoints/*.ckpt"):
            assert all(value.isfinite().all() for value in read_checkpoint(file)["state_dict"].values()), file
        return folder, line

    return run


@pytest.mark.parametrize(
    ("batch", "args", "step"),
    [
        (LAST, [], BATCHES),
        (LAST, ["--trainer.limit_val_batches=0"], BATCHES),
        (LAST, ["--stages.first.average_from=1", "--stages.first.average_every=100"], BATCHES),
        (BATCHES + 1, ["--best.every_n_train_steps=1"], BATCHES),
        (BATCHES + 1, ["--stages.first.average_from=0", "--last.every_n_train_steps=1"], BATCHES + 1),
    ],
)
def test_the_last_good_checkpoint_stays_and_is_named(config, diverges, batch, args, step):
    Recorder.spoil_at = batch
    folder, line = diverges(config(), *args)
    last = ckpt(folder, "last")
    assert read_checkpoint(last)["global_step"] == step
    assert str(last) in line
    assert "--stages.first.lr" in line
    assert "--ckpt_path=last" in line
    assert len(rows_of(folder)) > 0
    assert not any("val/P@1" in row for row in rows_of(folder) if int(row["step"]) > BATCHES)


@pytest.mark.kill
def test_a_signal_does_not_save_them(config, diverges):
    Recorder.spoil_at = Recorder.stop_at = BATCHES + 1
    folder, _ = diverges(config())
    assert read_checkpoint(ckpt(folder, "last"))["global_step"] == BATCHES


def test_a_run_that_diverges_at_once_has_no_checkpoint_to_name(config, diverges):
    Recorder.spoil_at = 0
    folder, line = diverges(config(), names=["head.classifier.weight"])
    assert "--ckpt_path" not in line
    assert list(folder.glob("checkpoints/*")) == []


@pytest.mark.parametrize(
    "stages",
    [
        "\n  - {name: first, epochs: 1}\n  - {name: end, on_enter: [diverge]}",
        "\n  - {name: first, epochs: 1}\n  - {name: end, epochs: 1, on_enter: [diverge]}",
        "\n  - {name: first, epochs: 2, each_epoch: [diverge]}",
    ],
    ids=["last-stage", "stage-with-epochs", "each-epoch"],
)
def test_a_transition_is_checked_before_anything_is_trained(config, diverges, stages):
    diverges(config(stages), names=["head.classifier.weight"])
    assert len(Recorder.batches) in (0, BATCHES)


def test_a_checkpoint_of_such_weights_is_refused(config, go, fails, tmp_path):
    path = config()
    content = read_checkpoint(ckpt(go(path), "first"))
    spoil(content["state_dict"]["head.classifier.weight"])
    bad = tmp_path / "bad.ckpt"
    torch.save(content, bad)
    given = [f"--ckpt={bad}", f"--trust={Recorder.__module__}"]
    for command in ("validate", "test"):
        fails(command, *given, names=["finite", "head.classifier.weight"])
    fails("fit", *given, "--from_stage=second", f"--runs={tmp_path / 'no'}", names=["finite"])
    assert not list((tmp_path / "no").glob("*/*/checkpoints/*"))
