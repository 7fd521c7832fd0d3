"""Linear engines through the real command line, on tiny data."""

from __future__ import annotations

import json
import sys

import pytest

from heads.engines.omikuji_trees import library
from tests.cli.test_experiments import TINY as FEWER
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

# Enough documents for a model to show that it has learned: the most frequent label is right for four in ten.
TINY = [*FEWER, "--data.num_documents=600"]
CONFIG = """
trainer: {num_sanity_val_steps: 0}
model: {backbone: Words, head: OneVsRestSvm}
stages:
  - {name: fit, on_enter: [fit]}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text(CONFIG)
    return path


def predictions(folder, tmp_path, *args):
    (tmp_path / "docs.txt").write_text("one text\nanother text of more words\n")
    out = tmp_path / "tags.jsonl"
    main(
        ["predict", f"--ckpt={folder}/checkpoints/best.ckpt", f"--input={tmp_path / 'docs.txt'}", f"--out={out}", *args]
    )
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("head", ["OneVsRestSvm", "Bonsai"])
def test_fit_test_predict_and_continue(head, fit, config, read_metrics, tmp_path):
    folder = fit(*TINY, f"--model.head={head}", config=config, wandb="offline")
    facts = read_metrics(folder)
    assert facts["metrics"]["P@1"] > 0.5
    assert facts["epochs"] == 0
    assert facts["parameters"] > 20 if head == "OneVsRestSvm" else facts["parameters"] is None
    assert facts["seconds"] > 0
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert (folder / "metrics.csv").read_text().count("val/P@1,") == 1
    for row in predictions(folder, tmp_path, "--k=3"):
        assert len(row["labels"]) == 3
    before = read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]
    # nothing is left to be done: the model is not fitted again
    given = ["fit", f"--config={config}", *TINY, f"--model.head={head}", f"--runs={tmp_path / 'runs'}"]
    main([*given, "--wandb.mode=disabled", "--ckpt_path=last"])
    after = read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]
    assert all(after["head._extra_state"][name].equal(part) for name, part in before["head._extra_state"].items())
    assert read_metrics(folder)["metrics"] == facts["metrics"]


def test_tags_of_an_engine_which_needs_training_for_new_labels(fit, config, capfd, tmp_path):
    folder = fit(*TINY, "--model.head=Parabel", config=config)
    (tmp_path / "few.jsonl").write_text('{"text": "a text", "labels": ["new"]}\n')
    given = [f"--ckpt={folder}/checkpoints/best.ckpt", f"--input={tmp_path / 'few.jsonl'}"]
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["add-labels", *given, f"--out={tmp_path / 'b.ckpt'}"])
    assert left.value.code == 2
    assert "Parabel" in capfd.readouterr().err
    (tmp_path / "docs.txt").write_text("a text\n")
    main(["predict", f"--ckpt={folder}/checkpoints/best.ckpt", f"--input={tmp_path / 'docs.txt'}", "--k=2"])
    (line,) = capfd.readouterr().out.splitlines()  # the library writes nothing there
    assert len(json.loads(line)["labels"]) == 2


def test_an_engine_has_no_epochs(fails, config, tmp_path):
    given = ["fit", f"--config={config}", f"--runs={tmp_path}", *TINY]
    fails(*given, "--stages.fit.epochs=1", names=["'fit'"])
    engine = ["OneVsRestSvm", "`on_enter: [fit]`"]
    fails(*given, "--stages.fit.epochs=1", "--model.backbone=CNN", names=["'fit'", *engine])
    fails(*given, "--stages.fit.on_enter=[]", names=engine)


def test_without_the_libraries(fails, config, tmp_path, monkeypatch, capsys):
    library.cache_clear()
    for name in ("liblinear", "omikuji"):
        monkeypatch.setitem(sys.modules, name, None)
    for head, name in (("OneVsRestSvm", "liblinear"), ("Parabel", "omikuji")):
        given = [f"--config={config}", f"--runs={tmp_path}", *TINY, f"--model.head={head}"]
        fails("fit", *given, names=[name, "pip install 'xmc-zoo[linear]'"])
    main(["list"])
    assert "OneVsRestSvm" in capsys.readouterr().out
    library.cache_clear()
