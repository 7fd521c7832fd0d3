"""ME-XML's stages through the real command line, on tiny data and a tiny random encoder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.test_experiments import short
from zoo.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.experiment
EXPERIMENT = Path("experiments/mexml_reuters.yaml")
TWO = "--model.head.experts=[{kind: label_attention, layer: 1}, {kind: cls, layer: -1}]"
FAR = "--model.head.experts=[{kind: cls, layer: 7}]"


@pytest.fixture
def mexml(fit):
    """Train; returns the run folder."""
    return lambda *args: fit(*short(EXPERIMENT), *args, config=EXPERIMENT)


def logged(folder):
    """The values of each column that has any."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {key: [float(row[key]) for row in rows if row[key]] for key in rows[0]}


def test_experts_are_measured_one_by_one(mexml, read_metrics, capsys):
    folder = mexml(TWO)
    metrics = read_metrics(folder)["metrics"]
    assert {"P@1", "A1/P@1", "D-1/P@1", "A1/PSP@5", "D-1/macroF@5/few"} <= set(metrics)
    values = logged(folder)
    assert {"val/A1/nDCG@5", "val/D-1/PSP@1", "train/experts/A1_epoch", "train/experts/D-1_epoch"} <= set(values)
    assert {"train/experts/kl/A1/D-1_epoch", "train/diverse/kl/D-1/A1_epoch"} <= set(values)
    assert all(value > 0 for value in values["train/diverse/kl/A1/D-1_epoch"])
    assert "D-1" in capsys.readouterr().out  # in the final table


def test_diversity_counts_from_the_second_stage_on(mexml):
    values = logged(mexml(TWO, "--model.head.diversity=100"))
    assert values["train/experts/loss_epoch"] == values["train/experts/bce_epoch"]
    assert values["train/diverse/loss_epoch"][0] < values["train/diverse/bce_epoch"][0]


def test_rates_of_the_modules(mexml):
    folder = mexml(TWO, "--stages.diverse.groups={'head.*': {lr: 0.002}, 'head.experts.*.query': {lr: 0.0003}}")
    (optimizer,) = read_checkpoint(folder / "checkpoints" / "last.ckpt")["optimizer_states"]
    peaks = {(group["initial_lr"], group["weight_decay"]) for group in optimizer["param_groups"]}
    # of the encoder, of queries and of the rest, with weight decay and, for biases and norms, without; at 0.75 of them
    assert peaks == {(5e-5, 0.01), (5e-5, 0.0), (0.002, 0.01), (0.002, 0.0), (0.0003, 0.01)}


def test_mixed_precision_with_clipping(mexml, read_metrics):
    assert "P@1" in read_metrics(mexml(TWO, "--trainer.precision=bf16-mixed"))["metrics"]


def test_one_expert_and_a_collaborative_loss(mexml, read_metrics):
    one = read_metrics(mexml("--name=one", "--model.head.experts=[{kind: cls, layer: -1}]"))["metrics"]
    assert one["P@1"] == one["D-1/P@1"]
    both = mexml("--name=both", "--model.head.objective=collaborative")
    assert {"train/diverse/bce_epoch", "train/diverse/kl/A1/A6_epoch"} <= set(logged(both))


def test_on_a_recurrent_backbone(fit, read_metrics):
    recurrent = ["--model.backbone=BiLSTM", "--model.backbone.hidden=8", "--model.backbone.embed_dim=8"]
    args = [arg for arg in short(EXPERIMENT) if "backbone" not in arg]
    assert "A1/P@1" in read_metrics(fit(*args, *recurrent, TWO, config=EXPERIMENT))["metrics"]


def test_a_layer_that_the_backbone_lacks(fails):
    fails("fit", f"--config={EXPERIMENT}", *short(EXPERIMENT), FAR, names=["7", "6", "layers"])


def test_diversity_without_its_stage(fails):
    given = [f"--config={EXPERIMENT}", *short(EXPERIMENT), "--stages.diverse.on_enter=[]"]
    fails("fit", *given, names=["start_diversity"])
