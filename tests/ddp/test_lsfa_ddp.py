"""LSFA on two processes, and cut in each of its stages."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.ddp.runs import assert_same_run, only_run

CONFIG = f"""
data:
  class_path: Sample
  init_args: {{num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}}
trainer: {{accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}}}
  head:
    class_path: fragile.FragileAugmentor
    init_args:
      {{feat_dim: 12, head_count: 15, psc_start: 1, pvae_hidden: 8, latent: 6, pvae: {{epochs: 3, batch_size: 16}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages: {Path.cwd()}/experiments/parts/stages_lsfa.yaml
wandb: {{mode: disabled}}
"""
SHORT = [
    "--stages.representation.epochs=2",
    "--stages.representation.average_from=1",
    "--stages.representation.average_every=3",
]
# Keeps what each process has after its transitions.
NOTING = """
import os
import torch
from fragile import FragileAugmentor

class Noting(FragileAugmentor):
    def refresh_prototypes(self, ctx):
        super().refresh_prototypes(ctx)
        self.keep("refreshed", prototypes=self.prototypes, support=self.support)

    def collect_bank(self, ctx):
        super().collect_bank(ctx)
        self.keep("bank", prototypes=self.prototypes, **vars(self.bank))

    def keep(self, name, **values):
        folder = os.environ["NOTES"]
        os.makedirs(folder, exist_ok=True)
        torch.save(values, f"{folder}/{name}-{os.environ.get('LOCAL_RANK', '0')}.pt")
"""
FIRST = """
stages:
  - {name: representation, epochs: 1, on_enter: [refresh_prototypes, train_pvae, start_adjustment]}
"""


def devices(processes):
    return [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]


@pytest.fixture
def lsfa(staged, tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return staged


def test_two_processes_have_the_whole_bank_and_prototypes_of_one(lsfa, tmp_path):
    (tmp_path / "noting.py").write_text(NOTING)
    (tmp_path / "first.yaml").write_text(FIRST)
    settings = {"head_count": 15, "psc_start": 0, "feat_dim": 12, "pvae.epochs": 1}
    head = ["--config=first.yaml", "--model.head=noting.Noting"]
    head += [f"--model.head.{name}={value}" for name, value in settings.items()]
    head += ["--trainer.limit_train_batches=1", "--final_test=false"]
    for processes in (1, 2):
        lsfa(f"--name=on-{processes}", *head, *devices(processes), NOTES=str(tmp_path / str(processes)))
    for name in ("refreshed", "bank"):
        alone = torch.load(tmp_path / "1" / f"{name}-0.pt")
        assert all(alone["support"] > 0)
        for process in (0, 1):
            together = torch.load(tmp_path / "2" / f"{name}-{process}.pt")
            assert alone.keys() == together.keys()
            for key, value in alone.items():
                assert torch.allclose(value, together[key], rtol=0, atol=1e-6), (name, key)
    assert len(alone["features"]) == alone["support"].sum()
    assert (alone["features"] != 0).any(1).all()


@pytest.mark.parametrize(
    ("processes", "places"),
    [(1, ["representation:20", "collect_bank", "train_pvae", "adjust:5"]), (2, ["train_pvae"])],
    ids=["1-process", "2-processes"],
)
def test_kills_change_nothing(lsfa, tmp_path, processes, places):
    lsfa("--name=whole", *SHORT, *devices(processes))
    args = ["--name=cut", *SHORT, *devices(processes), "--last.every_n_train_steps=2", "--ckpt_path=last"]
    for place in places:
        lsfa(*args, code=-signal.SIGKILL, KILL=place)
    lsfa(*args)
    whole = only_run(tmp_path, "whole")
    assert_same_run(whole, only_run(tmp_path, "cut"))
    stages = ("representation", "bank", "pvae")
    assert {f"{name}.ckpt" for name in stages} <= {path.name for path in (whole / "checkpoints").iterdir()}
