"""LSFA's stages through the real command line, on tiny data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.test_experiments import short
from zoo.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.experiment
EXPERIMENT = Path("experiments/lsfa_reuters.yaml")
SMALL = ["--model.backbone.hidden=8", "--model.head.feat_dim=12", "--model.head.psc_start=0"]


@pytest.fixture
def lsfa(fit):
    """Train with small sizes; returns the run folder."""
    return lambda *args: fit(*short(EXPERIMENT), *SMALL, *args, config=EXPERIMENT)


def weights(folder, name):
    return read_checkpoint(folder / "checkpoints" / f"{name}.ckpt")["state_dict"]


def parts_that_differ(one, other):
    """By the first two parts of their names, without what metrics have measured."""
    names = {name for name, value in one.items() if not torch.equal(value, other[name]) and "metrics" not in name}
    return {".".join(name.split(".")[:2]) for name in names}


def columns(folder):
    return (folder / "metrics.csv").read_text().splitlines()[0].split(",")


def test_each_stage_changes_its_own_part(lsfa):
    folder = lsfa()
    representation, bank, pvae, last = (weights(folder, name) for name in ("representation", "bank", "pvae", "last"))
    assert parts_that_differ(representation, bank) == {"head.prototypes"}
    assert parts_that_differ(bank, pvae) == {"head.pvae", "head.generates"}
    assert parts_that_differ(pvae, last) == {"head.classifier", "head.adjusting"}
    logged = set(columns(folder))
    assert {"train/representation/bce_epoch", "train/representation/psc_epoch"} <= logged
    assert {"train/adjust/bce_epoch", "train/adjust/augmented_epoch", "pvae/loss", "pvae/off_prototype"} <= logged


def test_beginning_at_the_autoencoder_collects_a_bank(lsfa):
    folder = lsfa("--name=whole")
    again = lsfa("--name=later", "--from_stage=pvae", f"--ckpt={folder / 'checkpoints' / 'representation.ckpt'}")
    assert not parts_that_differ(weights(folder, "pvae"), weights(again, "pvae"))


ABLATIONS = {
    "B": ["--model.head.psc_weight=0"],
    "C": ["--model.head.psc_weight=0", "--model.head.samples=0"],
    "D": ["--model.head.psc_weight=0", "--model.head.samples=0", "--model.head.label_specific=false"],
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_papers_ablations_are_options(name, lsfa, read_metrics):
    folder = lsfa(*ABLATIONS[name])
    assert 0 <= read_metrics(folder)["metrics"]["P@1"] <= 1
    assert not any("psc" in column for column in columns(folder))
    assert any("augmented" in column for column in columns(folder)) == (name == "B")
    assert bool(weights(folder, "last")["head.generates"]) == (name == "B")
    assert ("head.query" in weights(folder, "last")) == (name != "D")
    saved = yaml.safe_load((folder / "config.yaml").read_text())["model"]["head"]["init_args"]
    assert saved["psc_weight"] == 0


def test_settings_of_the_autoencoder_are_options(lsfa, fails, tmp_path):
    run = ["fit", f"--config={EXPERIMENT}", f"--runs={tmp_path}", "--wandb.mode=disabled", *short(EXPERIMENT)]
    fails(*run, "--model.head.pvae.lr=-1", names=["--model.head.pvae.lr=-1.0"])
    folder = lsfa("--model.head.pvae.kl_weight=0.5")
    saved = yaml.safe_load((folder / "config.yaml").read_text())["model"]["head"]["init_args"]["pvae"]
    assert (saved["epochs"], saved["kl_weight"]) == (2, 0.5)
