"""Blend through the real command line, on tiny data."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_experiments import TINY as FEWER
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

TINY = [*FEWER, "--data.num_documents=400"]
CONFIG = """
trainer: {num_sanity_val_steps: 0}
model:
  backbone: Words
  head:
    class_path: Blend
    init_args:
      members: {svm: OneVsRestSvm, trees_of_labels: Parabel}
      features: [Scores, Counts, {class_path: Neighbours, init_args: {k: 10}}]
      scores: SCORES
      ranker: {trees: 20, least: 10}
stages:
  - {name: members, on_enter: [svm.fit, trees_of_labels.fit]}
  - {name: ranker, on_enter: [fit_ranker]}
"""


@pytest.fixture
def config(tmp_path):
    def write(scores):
        path = tmp_path / "blend.yaml"
        path.write_text(CONFIG.replace("SCORES", scores))
        return path

    return write


@pytest.mark.parametrize("scores", ["validation", "out_of_fold"])
def test_fit_resume_predict_and_rerank(scores, fit, config, read_metrics, tmp_path):
    folder = fit(*TINY, config=config(scores), wandb="offline")
    metrics = read_metrics(folder)["metrics"]
    assert metrics["P@1"] > 0.5
    assert {"svm/P@1", "trees_of_labels/P@1"} <= set(metrics)
    best = folder / "checkpoints" / "best.ckpt"
    state = read_checkpoint(best)["state_dict"]
    assert state["head.trees._extra_state"]["roots"].shape == (20,)
    (tmp_path / "docs.txt").write_text("one text\nanother text of more words\n")
    new = tmp_path / "new.ckpt"
    main(["rerank", f"--ckpt={best}", f"--out={new}", "--exponent=0.5"])
    for ckpt in (best, new):
        out = tmp_path / f"{ckpt.stem}.jsonl"
        main(["predict", f"--ckpt={ckpt}", f"--input={tmp_path / 'docs.txt'}", f"--out={out}", "--k=3"])
        assert [len(json.loads(line)["labels"]) for line in out.read_text().splitlines()] == [3, 3]
    # from the members' checkpoint, the same ranker is fitted again
    given = ["--from_stage=ranker", f"--ckpt={folder / 'checkpoints' / 'members.ckpt'}", "--name=again"]
    again = fit(*TINY, *given, config=config(scores))
    repeated = read_checkpoint(again / "checkpoints" / "best.ckpt")["state_dict"]
    if scores == "validation":  # folds of Parabel differ from run to run
        trees = (part["head.trees._extra_state"] for part in (state, repeated))
        assert all(one.equal(other) for one, other in zip(*(tree.values() for tree in trees), strict=True))


def test_mistakes(config, fails, tmp_path):
    path = config("validation")
    text = path.read_text()
    for old, new, names in (
        ("on_enter: [fit_ranker]", "on_enter: [svm.fit]", ["fit_ranker"]),
        ("svm: OneVsRestSvm", "'a b': OneVsRestSvm", ["a b"]),
        ("trees: 20", "trees: 0", ["ranker.trees=0"]),
    ):
        path.write_text(text.replace(old, new))
        fails("fit", "--config", str(path), *TINY, "--runs", str(tmp_path / "runs"), names=names)
