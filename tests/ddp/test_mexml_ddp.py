"""ME-XML on a tiny transformer: on two processes, and cut in each of its stages."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.ddp.runs import assert_same_run, only_run

CONFIG = f"""
data:
  class_path: Sample
  init_args: {{num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}}
trainer: {{accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}}
model:
  backbone:
    class_path: Transformer
    init_args:
      name: xlnet
      pretrained: false
      config: {{d_model: 16, n_layer: 2, n_head: 2, d_inner: 16}}
  head: fragile.FragileExperts
  optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-3}}}}
stages: {Path.cwd()}/experiments/parts/stages_mexml.yaml
wandb: {{mode: disabled}}
"""
SHORT = ["--stages.experts.epochs=2", "--stages.diverse.epochs=2"]


@pytest.mark.parametrize(
    ("processes", "places"), [(1, ["experts:20", "diverse:5"]), (2, ["diverse:3"])], ids=["1-process", "2-processes"]
)
def test_kills_change_nothing(staged, tmp_path, processes, places):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
    staged("--name=whole", *SHORT, *devices)
    args = ["--name=cut", *SHORT, *devices, "--last.every_n_train_steps=2", "--ckpt_path=last"]
    for place in places:
        staged(*args, code=-signal.SIGKILL, KILL=place)
    staged(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))
