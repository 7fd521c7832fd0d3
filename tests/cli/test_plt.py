"""Heads with label trees through the real command line, on tiny data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.test_experiments import short
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.experiment
DYNAMIC, STATIC = (Path(f"experiments/{name}_reuters.yaml") for name in ("lightattention", "attentionxml_tree"))


def values(folder, key):
    with (folder / "metrics.csv").open() as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


def test_what_the_beam_finds_is_measured(fit, read_metrics, capsys):
    folder = fit(*short(DYNAMIC), "--model.head.beam=2", config=DYNAMIC)
    metrics = read_metrics(folder)["metrics"]
    assert 0 < metrics["clusters@beam"] < 1
    assert 0 < metrics["labels@beam"] < 1
    assert len(values(folder, "val/labels@beam")) == 1
    assert len(values(folder, "train/main/clusters_epoch")) == len(values(folder, "train/main/labels_epoch")) == 1
    assert "labels@beam" in capsys.readouterr().out  # in the final table


def test_a_beam_as_wide_as_the_tree_finds_all(fit, read_metrics):
    metrics = read_metrics(fit(*short(DYNAMIC), "--model.head.beam=4", config=DYNAMIC))["metrics"]
    assert metrics["clusters@beam"] == metrics["labels@beam"] == 1


def test_level_by_level(fit):
    folder = fit(*short(STATIC), config=STATIC)
    before, after = (
        read_checkpoint(folder / "checkpoints" / f"{name}.ckpt")["state_dict"] for name in ("clusters", "last")
    )
    changed = {name for name in after if not before[name].equal(after[name])}
    trained = ("backbone.encoders.1.", "head.trees.0.levels.1.")
    buffers = {"backbone.level", "head.level"}
    assert buffers < changed
    assert all(name.startswith(trained) or name in buffers or "metrics" in name for name in changed)
    assert int(after["head.level"]) == int(after["backbone.level"]) == 1


def test_a_tree_must_be_built(fails, tmp_path):
    given = [f"--config={DYNAMIC}", f"--runs={tmp_path}", *short(DYNAMIC), "--stages.main.on_enter=[]"]
    fails("fit", *given, names=["PLT", "`on_enter: [build_tree]`"])


def test_more_labels_than_an_optimizer_for_all_of_them_can_take(fails, tmp_path):
    given = [f"--config={DYNAMIC}", f"--runs={tmp_path}", *short(DYNAMIC), "--model.head.sparse_above=10"]
    fails("fit", *given, names=["Adam", "--model.optimizer=RowAdam"])


def test_sparse_gradients_with_the_optimizer_for_them(fit, read_metrics):
    given = ["--model.head.sparse_above=10", "--model.optimizer=RowAdam", "--model.optimizer.lr=0.003"]
    assert "P@1" in read_metrics(fit(*short(DYNAMIC), *given, config=DYNAMIC))["metrics"]


def test_predicting_needs_the_checkpoint_alone(fit, tmp_path):
    best = fit(*short(STATIC), config=STATIC) / "checkpoints" / "best.ckpt"
    source, out = tmp_path / "docs.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a quota for herring"}\n')
    main(["predict", f"--ckpt={best}", f"--input={source}", f"--out={out}", "--k=3"])
    (tags,) = (json.loads(line) for line in out.read_text().splitlines())
    assert len(tags["labels"]) == 3


def test_an_encoder_for_each_level(fails, tmp_path):
    given = [f"--config={STATIC}", f"--runs={tmp_path}", *short(STATIC), "--model.backbone.levels=1"]
    fails("fit", *given, names=["PLT", "2", "PerLevel", "1"])
