"""Configurations of small staged runs, heads that end them, and comparisons of run folders."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Protocol

import torch

from zoo.training.checkpoint import read_checkpoint

START = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
wandb: {mode: disabled}
"""
STAGED = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}}}
  head: {{class_path: fragile.Fragile, init_args: {{hidden: 12, tail_labels: 6, draws: 4, shots: 2}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages:
  - name: head
    epochs: 3
    trainable: ["backbone.*", head.project.*, head.head, head.scale]
    documents: head_documents
    lr_scheduler: {{class_path: ExponentialLR, init_args: {{gamma: 0.9}}}}
    optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
    restore_best: true
    average_from: 1
    average_every: 3
  - {{name: transfer, on_enter: [transfer]}}
  - name: finetune
    epochs: 2
    trainable: ["head.*"]
    documents: tail_documents
    each_epoch: [shake]
    lr: 1e-3
    groups: {{"head.t*": {{lr: 0.01}}}}
    average_from: 0
    average_every: 1
  - {{name: again, on_enter: [transfer]}}
"""
# All levels at once, with sparse gradients of the labels and of one level of clusters.
DYNAMIC_TREE = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}}}
  head:
    class_path: fragile.FragileTree
    init_args: {{hidden: [8], tree: {{clusters: 8, height: 2, fanout: 4}}, beam: 3, sparse_above: 4}}
  optimizer: {{class_path: RowAdam, init_args: {{lr: 0.01}}}}
stages:
  - {{name: main, epochs: 2, on_enter: [build_tree], average_from: 1, average_every: 3}}
"""
LSFA = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3, embed_dropout: 0.2}}}}
  head:
    class_path: fragile.FragileAugmentor
    init_args:
      {{feat_dim: 12, head_count: 15, psc_start: 1, pvae_hidden: 8, latent: 6, pvae: {{epochs: 3, batch_size: 16}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages: {Path.cwd()}/experiments/parts/stages_lsfa.yaml
"""
# Heads that end all processes of the run where $KILL says so: at <stage>:<batches since its start>, or in a transition.
FRAGILE = """
import os, signal
from collections import Counter
import torch
from heads import PLT, Experts, PrototypeTransfer, PvaeAugmentor

class Mortal:
    seen = Counter()

    def loss(self, features, targets, stage):
        if self.training:
            self.seen[stage] += 1
            self.meet(f"{stage}:{self.seen[stage]}")
        return super().loss(features, targets, stage)

    def meet(self, place):
        if os.environ.get("KILL") == place:
            os.killpg(0, signal.SIGKILL)
        if os.environ.get("TERM") == place and os.environ.get("LOCAL_RANK", "0") == os.environ.get("TERM_RANK", "0"):
            os.kill(os.getpid(), signal.SIGTERM)

class Fragile(Mortal, PrototypeTransfer):
    def transfer(self, ctx):
        super().transfer(ctx)
        self.meet("transfer")

    @torch.no_grad()
    def shake(self, ctx):
        for _ in ctx.track(range(2), "shaking"):
            self.head += 0.1 * torch.rand_like(self.head)

class FragileAugmentor(Mortal, PvaeAugmentor):
    def train_pvae(self, ctx):
        super().train_pvae(ctx)
        self.meet("train_pvae")

class FragileExperts(Mortal, Experts): ...

class FragileTree(Mortal, PLT):
    def build_tree(self, ctx):
        super().build_tree(ctx)
        self.meet("build_tree")

    def start_next_level(self, ctx):
        super().start_next_level(ctx)
        self.meet("start_next_level")
"""


class Fit(Protocol):
    def __call__(self, *args: str, processes: int = 1, code: int = 0, **variables: str) -> str: ...


def assert_kills_change_nothing(
    fit: Fit, folder: Path, places: list[str], *args: str, resuming: tuple[str, ...] = (), **given: Any
) -> Path:
    """Kill a run in each of `places` in turn, resume it to its end, and compare it with an uninterrupted one."""
    fit("--name=whole", *args, **given)
    cut = ["--name=cut", *args, *resuming, "--ckpt_path=last"]
    for place in places:
        fit(*cut, code=-signal.SIGKILL, KILL=place, **given)
    fit(*cut, **given)
    whole = only_run(folder, "whole")
    assert_same_run(whole, only_run(folder, "cut"))
    return whole


def environment(folder: Path, cache: Path) -> dict[str, str]:
    """Environment of a process: the code under test, modules in `folder`, no settings of the developer."""
    kept = {name: value for name, value in os.environ.items() if name not in ("ZOO_DATA", "ZOO_RUN_FOLDER")}
    paths = os.pathsep.join(map(str, (Path.cwd(), folder)))
    return kept | {
        "PYTHONPATH": paths,
        "ZOO_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "ZOO_OVERSUBSCRIBE": "1",
    }


def only_run(folder: Path, name: str) -> Path:
    (run,) = (folder / "runs" / name).iterdir()
    return run


def tensors(value: Any) -> list[torch.Tensor]:
    """A weight, or those of an extra state, which may be none."""
    return list(value.values()) if isinstance(value, dict) else [] if value is None else [value]


def weights(folder: Path, name: str, file: str = "last.ckpt") -> dict[str, Any]:
    """Weights and extra states of the only run of that name."""
    found: dict[str, Any] = read_checkpoint(only_run(folder, name) / "checkpoints" / file)["state_dict"]
    return found


def assert_same_run(one: Path, other: Path) -> None:
    files = [sorted(path.name for path in (run / "checkpoints").glob("*.ckpt")) for run in (one, other)]
    assert files[0] == files[1]
    assert {"last.ckpt", "best.ckpt"} <= set(files[0])
    for file in files[0]:
        first, second = (read_checkpoint(run / "checkpoints" / file) for run in (one, other))
        assert first["global_step"] == second["global_step"]
        assert first["epoch"] == second["epoch"]
        assert first["state_dict"].keys() == second["state_dict"].keys()
        for name, value in first["state_dict"].items():
            for mine, its in zip(tensors(value), tensors(second["state_dict"][name]), strict=True):
                assert torch.equal(mine, its), (file, name)
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (one, other))
    assert first["metrics"] == second["metrics"]
