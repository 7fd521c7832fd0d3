"""Runs whose metrics are no result are marked, and left out of comparisons."""

from __future__ import annotations

import pytest
import yaml

from zoo.commands.main import main

NO_EPOCHS = "stages:\n- {name: main, epochs: 0}\n"


@pytest.mark.parametrize(
    ("args", "reasons"),
    [
        ([], []),
        (["--trainer.fast_dev_run=true"], ["fast_dev_run"]),
        (["--trainer.max_epochs=0"], ["never trained"]),
        (["--trainer.limit_train_batches=0"], ["never trained", "limit_train_batches=0"]),
        (["--trainer.limit_train_batches=0.5"], ["limit_train_batches=0.5"]),
        (
            ["--trainer.limit_val_batches=2", "--trainer.limit_test_batches=0.5", "--data.eval_batch_size=4"],
            ["limit_val_batches=2", "limit_test_batches=0.5"],
        ),
    ],
)
def test_the_reasons_are_kept_and_shown(fit, read_metrics, capsys, args, reasons):
    folder = fit(*args)
    shown = capsys.readouterr().out
    assert read_metrics(folder)["partial"] == reasons
    assert all(reason in shown for reason in reasons)
    assert ("partial" in shown) == bool(reasons)


def test_stages_without_epochs_train_only_in_their_transitions(fit, read_metrics, tiny, tmp_path):
    content = yaml.safe_load(tiny.read_text()) | yaml.safe_load(NO_EPOCHS)
    del content["trainer"]["max_epochs"]
    path = tmp_path / "staged.yaml"
    path.write_text(yaml.safe_dump(content))
    assert read_metrics(fit(config=path))["partial"] == ["never trained"]
    content["model"] = {"backbone": {"class_path": "BiLSTM"}, "head": "OneVsRestSvm"}
    content["stages"] = [{"name": "fit", "on_enter": ["fit"]}]
    path.write_text(yaml.safe_dump(content))
    assert read_metrics(fit(config=path))["partial"] == []


def test_a_comparison_shows_them_on_request(fit, capsys, tmp_path):
    fit("--trainer.limit_test_batches=0.5", "--data.eval_batch_size=4", "--name=half")
    fit("--name=whole")
    shown = {}
    for args in ([], ["--partial"]):
        capsys.readouterr()
        main(["compare", str(tmp_path / "runs"), "--format=csv", *args])
        shown[bool(args)] = capsys.readouterr()
    assert "half" not in shown[False].out
    assert "limit_test_batches=0.5" in shown[False].err
    assert "half" in shown[True].out
    assert all("whole" in captured.out for captured in shown.values())
