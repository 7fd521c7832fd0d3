"""Blend through the real command line, on tiny data."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

import zoo
from datamodules.synthetic import SampleCorpus
from tests.cli.test_experiments import TINY as FEWER
from tests.support.errors import raises
from zoo.commands.main import main
from zoo.core.errors import UserError
from zoo.core.run_search import read_runs
from zoo.training.checkpoint import read_checkpoint, write_checkpoint

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
    assert sum(read_metrics(folder)["importances"].values()) == pytest.approx(1)
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


@pytest.fixture
def members(fit):
    network = fit()
    other = fit("--model.backbone=CNN", "--seed_everything=1", "--data.max_length=20")
    return [network, other]


def test_finished_runs_as_one_model(members, tmp_path, capsys):
    main(["blend", *map(str, members), "--name=both", f"--out={tmp_path / 'made'}", "--device=cpu", "--trees=20"])
    (run,) = read_runs([tmp_path / "made"])
    assert run.facts["head"] == "Blend"
    assert 0 < run.metrics["P@1"] <= 1
    assert set(run.facts["members"]) == set(map(str, members))
    assert sum(run.importances.values()) == pytest.approx(1)
    file = run.path / "checkpoints" / "best.ckpt"
    tagger = zoo.load(file, "cpu")
    assert tagger.threshold == run.metrics["threshold"]
    # texts get the scores of the test, in batches of another size
    sample = SampleCorpus(num_documents=150, num_labels=20, words_per_document=40)
    texts = [document.text for document in sample.documents("test")][:7]
    kept = pq.read_table(run.path / "predictions.parquet")
    for row, tags in enumerate(tagger.tag(texts, k=3)):
        assert [tagger.names.index(tag.label) for tag in tags] == kept["labels"][row].as_py()[:3]
        assert [tag.score for tag in tags] == pytest.approx(kept["scores"][row].as_py()[:3], abs=1e-5)
    known = {document.id for document in sample.documents("train")}
    for tag in tagger.tag(texts[:1], k=3, explain=True)[0]:
        assert {texts[0][span.start : span.end] for span in tag.spans} <= set(re.findall(r"\w+", texts[0]))
        assert {document.id for document in tag.documents} <= known
        assert 0 < len(tag.documents) <= 3
    main(["calibrate", f"--ckpt={file}", f"--out={tmp_path / 'calibrated.ckpt'}", "--device=cpu", "--target=labels=3"])
    calibrated = zoo.load(tmp_path / "calibrated.ckpt", "cpu")
    assert 0 < np.mean([len(tags) for tags in calibrated.tag(texts, threshold="auto")]) < 10
    capsys.readouterr()
    main(["compare", *map(str, members), str(run.path)])
    assert "both" in capsys.readouterr().out


def test_runs_with_other_documents_are_refused(members, fit, fails, tmp_path):
    other = fit("--data.limit_train=100")
    fails("blend", str(members[0]), str(other), f"--out={tmp_path / 'made'}", names=[other.name.removesuffix("-2")])
    fails("blend", str(members[0]), f"--out={tmp_path / 'made'}", names=["two"])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("change", [{"ranker": 3}, {"ranker": {}}, {"ranker": "member"}, {"members": "one"}])
def test_a_damaged_blend_is_refused(members, tmp_path, change):
    contents = [read_checkpoint(member / "checkpoints" / "best.ckpt") for member in members]
    change = {key: {"member": contents[0], "one": contents[:1]}.get(str(value), value) for key, value in change.items()}
    stored = {"format": 2, "members": contents, "threshold": 0.25, "ranker": contents[0]}
    write_checkpoint({"zoo": stored | change}, tmp_path / "bad.ckpt")
    with raises(UserError, "bad.ckpt"):
        zoo.load(tmp_path / "bad.ckpt", "cpu")
