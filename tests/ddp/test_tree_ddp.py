"""Label trees on two processes, and cut in each of their stages."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.ddp.runs import assert_same_run, only_run
from zoo.checkpoint import read_checkpoint

START = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
wandb: {mode: disabled}
"""
ENCODER = "{class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}"
TREE = "{clusters: 8, height: 2, fanout: 4}"
# All at once, with sparse gradients of the labels and of one level of clusters.
DYNAMIC = f"""{START}
model:
  backbone: {ENCODER}
  head:
    class_path: fragile.FragileTree
    init_args: {{hidden: [8], tree: {TREE}, beam: 3, sparse_above: 4}}
  optimizer: {{class_path: RowAdam, init_args: {{lr: 0.01}}}}
stages:
  - {{name: main, epochs: 3, on_enter: [build_tree], average_from: 1, average_every: 3}}
"""
# Level by level, each with its encoder.
STATIC = f"""{START}
model:
  backbone: {{class_path: PerLevel, init_args: {{levels: 2, encoder: {ENCODER}}}}}
  head:
    class_path: fragile.FragileTree
    init_args: {{hidden: [8], tree: {{clusters: 8}}, beam: 3, layer_per_level: true}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages: {Path.cwd()}/experiments/parts/stages_levels.yaml
"""
SHORT = [
    f"--stages.{stage}.{setting}" for stage in ("clusters", "labels") for setting in ("epochs=2", "average_from=1")
]
LIGHTXML = f"""{START}
model:
  backbone:
    class_path: Transformer
    init_args:
      name: bert
      pretrained: false
      config: {{hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 16}}
  head:
    class_path: fragile.FragileLightXML
    init_args: {{hidden: 8, layers: 2, tree: {{clusters: 8, count: 2}}, beam: 3}}
  optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-3}}}}
stages:
  - {{name: main, epochs: 2, on_enter: [build_tree]}}
"""


def devices(processes):
    return [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]


@pytest.mark.parametrize(
    ("config", "processes", "places"),
    [
        (DYNAMIC, 1, ["build_tree", "main:3", "main:31"]),
        (DYNAMIC, 2, ["build_tree", "main:9"]),
        (STATIC, 1, ["clusters:5", "start_next_level", "labels:3", "labels:17"]),
        (STATIC, 2, ["clusters:3", "labels:9"]),
        (LIGHTXML, 1, ["main:5"]),
    ],
    ids=["dynamic-1", "dynamic-2", "static-1", "static-2", "lightxml-1"],
)
def test_kills_change_nothing(staged, tmp_path, config, processes, places):
    (tmp_path / "tiny.yaml").write_text(config)
    given = [*devices(processes), *(SHORT if config is STATIC else [])]
    staged("--name=whole", *given)
    args = ["--name=cut", *given, "--last.every_n_train_steps=2", "--ckpt_path=last"]
    for place in places:
        staged(*args, code=-signal.SIGKILL, KILL=place)
    staged(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))


def test_two_processes_have_the_tree_of_one(staged, tmp_path):
    (tmp_path / "tiny.yaml").write_text(DYNAMIC)
    trees = []
    for processes in (1, 2):
        name = f"on-{processes}"
        staged(f"--name={name}", *devices(processes), "--stages.main.epochs=1", "--stages.main.average_from=null")
        weights = read_checkpoint(only_run(tmp_path, name) / "checkpoints" / "last.ckpt")["state_dict"]
        trees.append(weights["head.trees.0.cluster_of"])
    assert torch.equal(*trees)
    assert not torch.equal(trees[0], trees[0].sort().values)  # another than the one to begin with
