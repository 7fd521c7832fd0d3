"""Heads in heads on two processes: what their transitions find is what one process finds."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.ddp.runs import environment, only_run
from zoo.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 305, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 12}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8}}
  head:
    class_path: Rerank
    init_args:
      allowed_loss: 0.1
      ranknet: {held_back: 0} # the last epoch, so that there is something to compare
      inner: {class_path: Wide, init_args: {inner: Linear, engine: OneVsRestSvm}}
  optimizer: {class_path: Adam, init_args: {lr: 0.02}}
stages:
  - {name: main, epochs: 2}
  - {name: wide, on_enter: [inner.engine.fit, inner.fit_weights]}
  - {name: rerank, on_enter: [train_ranknet, choose_exponent]}
wandb: {mode: disabled}
"""


@pytest.fixture
def zoo(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)

    def run(name: str, processes: int, *args: str):
        devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config=tiny.yaml", f"--name={name}", *devices, *args],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return only_run(tmp_path, name) / "checkpoints"

    return run


def test_two_processes_weigh_train_and_choose_as_one_does(zoo):
    start = zoo("two", 2) / "main.ckpt"
    made = []
    for processes in (1, 2):
        files = zoo(f"from-{processes}", processes, "--from_stage=wide", f"--ckpt={start}", "--final_test=false")
        made.append(read_checkpoint(files / "last.ckpt")["state_dict"])
    one, two = made
    assert float(one["head.exponent"]) == float(two["head.exponent"])
    assert bool(one["head.trained"])
    names = ("head.inner.weights", "head.net.first.0.weight", "head.net.second.0.weight")
    for name in names:
        assert torch.allclose(one[name], two[name], rtol=0, atol=1e-4), name
    assert not torch.equal(one["head.inner.weights"], read_checkpoint(start)["state_dict"]["head.inner.weights"])
    assert one["head.net.second.0.weight"].any()
