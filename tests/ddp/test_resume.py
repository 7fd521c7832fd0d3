"""Killed in any stage, inside an epoch or a transition, and resumed: the run ends as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from zoo.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}
  head: {class_path: fragile.Fragile, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2}}
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
stages:
  - name: head
    epochs: 3
    trainable: ["backbone.*", head.project.*, head.head, head.scale]
    documents: head_documents
    lr_scheduler: {class_path: ExponentialLR, init_args: {gamma: 0.9}}
    optimizer: {class_path: Adam, init_args: {lr: 0.01}}
    restore_best: true
  - {name: transfer, on_enter: [transfer]}
  - {name: finetune, epochs: 2, documents: tail_documents, lr: 1e-3, groups: {"head.*": {lr: 0.01}}}
  - {name: again, on_enter: [transfer]}
wandb: {mode: disabled}
"""
# A head that ends all processes of the run where $KILL says so: at <stage>:<batches since its start>, or in `transfer`.
FRAGILE = """
import os, signal
from collections import Counter
from heads import PrototypeTransfer

class Fragile(PrototypeTransfer):
    seen = Counter()

    def loss(self, features, targets, stage):
        if self.training:
            self.seen[stage] += 1
            self.meet(f"{stage}:{self.seen[stage]}")
        return super().loss(features, targets, stage)

    def transfer(self, ctx):
        super().transfer(ctx)
        self.meet("transfer")

    def meet(self, place):
        if os.environ.get("KILL") == place:
            os.killpg(0, signal.SIGKILL)
        if os.environ.get("TERM") == place and os.environ.get("LOCAL_RANK", "0") == os.environ.get("TERM_RANK", "0"):
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def zoo(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "fragile.py").write_text(FRAGILE)
    environment = {name: value for name, value in os.environ.items() if name not in ("ZOO_DATA", "ZOO_RUN_FOLDER")}
    environment |= {
        "PYTHONPATH": f"{Path.cwd()}:{tmp_path}",
        "ZOO_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*args: str, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config", "tiny.yaml", *args],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            start_new_session=True,  # so that killpg does not reach the tests
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    return run


def only_run(tmp_path: Path, name: str) -> Path:
    (folder,) = (tmp_path / "runs" / name).iterdir()
    return folder


def assert_same_run(one: Path, other: Path) -> None:
    for file in ("last.ckpt", "best.ckpt", "head.ckpt", "finetune.ckpt"):
        first, second = (read_checkpoint(run / "checkpoints" / file) for run in (one, other))
        assert first["global_step"] == second["global_step"]
        assert first["epoch"] == second["epoch"]
        assert first["state_dict"].keys() == second["state_dict"].keys()
        for name, value in first["state_dict"].items():
            assert torch.equal(value, second["state_dict"][name]), (file, name)
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (one, other))
    assert first["metrics"] == second["metrics"]


@pytest.mark.parametrize(
    ("processes", "workers", "every"),
    [(1, 0, None), (1, 2, 2), (2, 0, 2), (2, 2, None)],
    ids=["1-process", "1-process-2-workers-mid-epoch", "2-processes-mid-epoch", "2-processes-2-workers"],
)
def test_kills_change_nothing(zoo, tmp_path, processes, workers, every):
    devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
    saving = [] if every is None else [f"--last.every_n_train_steps={every}"]
    zoo("--name=whole", *devices)
    args = ["--name=cut", *devices, *saving, f"--data.num_workers={workers}", "--ckpt_path=last"]
    epoch = {"head": 14 // processes, "finetune": 4 // processes}  # batches
    places = [f"head:{epoch['head'] + 4}", f"head:{epoch['head'] // 2 + 2}", "transfer"]
    for place in [*places, "finetune:2", f"finetune:{epoch['finetune'] + 1}"]:
        zoo(*args, code=-signal.SIGKILL, KILL=place)
    zoo(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))


@pytest.mark.parametrize(("processes", "to"), [(1, "0"), (2, "1")], ids=["1-process", "2-processes-to-the-second"])
def test_sigterm_saves_and_stops(zoo, tmp_path, processes, to):
    devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
    zoo("--name=whole", *devices)
    args = ["--name=cut", *devices, "--ckpt_path=last"]
    for place, step in (("head:3", 3), ("finetune:2", None)):
        error = zoo(*args, code=128 + signal.SIGTERM, TERM=place, TERM_RANK=to)
        assert "stopped by SIGTERM" in error
        assert "Traceback" not in error
        last = read_checkpoint(only_run(tmp_path, "cut") / "checkpoints" / "last.ckpt")
        assert step in (None, last["global_step"])  # it finished its batch, and no other
    zoo(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))


def test_sigterm_in_a_transition_stops_and_the_transition_is_repeated(zoo, tmp_path):
    zoo("--name=whole")
    zoo("--name=cut", code=128 + signal.SIGTERM, TERM="transfer")
    cut = only_run(tmp_path, "cut")
    assert not (cut / "metrics.json").exists()
    zoo("--name=cut", "--ckpt_path=last")
    assert_same_run(only_run(tmp_path, "whole"), cut)
