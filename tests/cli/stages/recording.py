"""What the tests of stages share: an experiment, a callback that notes what happens, readers of a run folder."""

from __future__ import annotations

import csv
import os
import signal
from typing import Any, ClassVar

import torch
from pytorch_lightning import Callback

from datamodules import LabelSpace
from heads import Linear
from zoo.training.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 100, num_labels: 12, words_per_document: 20, batch_size: 16}
trainer:
  accelerator: cpu
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 1
  callbacks: [{class_path: RECORDER}]
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 6, hidden: 4}}
  head: {class_path: HEAD}
  optimizer: {class_path: Adam, init_args: {lr: 0.05}}
stages:
  - name: first
    epochs: 2
    trainable: ["head.*"]
  - name: second
    epochs: 1
    lr: 1.0e-3
    groups: {"head.*": {lr: 1.0e-2}}
wandb: {mode: disabled}
"""
BATCHES = 5  # of 70 documents
TRANSFER = """
  - {name: head, epochs: 1, trainable: ["backbone.*", head.project.*, head.head, head.scale], documents: head_documents}
  - {name: transfer, on_enter: [transfer]}
  - {name: finetune, epochs: 1, documents: tail_documents}
"""


class Recorder(Callback):
    """Notes what each batch was trained with, and stops the run where a test wants it."""

    batches: ClassVar[list[dict[str, Any]]] = []
    weights: ClassVar[list[dict[str, torch.Tensor]]] = []  # before each batch
    validated: ClassVar[list[dict[str, torch.Tensor]]] = []  # in each validation
    visits: ClassVar[list[tuple[str, int, int]]] = []  # of transitions: method, epoch, batches before it
    kill_at: ClassVar[int | None] = None  # the batch, of all that were recorded, in which the run ends
    stop_at: ClassVar[int | None] = None  # the same, by a signal
    stop_by: ClassVar[tuple[int, ...]] = (signal.SIGTERM,)
    spoil_at: ClassVar[int | None] = None  # the batch whose optimizer step leaves a weight that is not finite

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if len(self.batches) == self.kill_at:
            raise RuntimeError("killed")
        if len(self.batches) == self.stop_at:
            for number in self.stop_by:
                os.kill(os.getpid(), number)
        (optimizer,) = trainer.optimizers
        self.weights.append({name: value.clone() for name, value in pl_module.state_dict().items()})
        self.batches.append(
            {
                "stage": pl_module.stage.name,
                "epoch": trainer.current_epoch,
                "rows": batch.rows.tolist(),
                "optimizer": type(optimizer).__name__,
                "lr": [group["lr"] for group in optimizer.param_groups],
                "random": torch.initial_seed(),
                "modes": (mode(pl_module.backbone), mode(pl_module.head)),
            }
        )

    def on_validation_epoch_start(self, trainer, pl_module):
        self.validated.append({name: value.clone() for name, value in pl_module.state_dict().items()})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if len(self.batches) - 1 == self.spoil_at:
            spoil(pl_module.head.classifier.weight)
        gradients = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
        self.batches[-1]["norm"] = float(torch.stack(gradients).norm())  # after clipping


@torch.no_grad()
def spoil(weight):
    weight[0, 0] = torch.inf


def mode(part):
    """Whether a part is in training mode in all that it is made of; None if some of it is."""
    found = {inner.training for inner in part.modules()}
    return found.pop() if len(found) == 1 else None


class Odd(Linear):
    """A head that can do in a test what takes long to come about: get better, get worse, be transformed."""

    def __init__(self, dim: int, space: LabelSpace, hidden: int | None = None) -> None:
        super().__init__(dim, space, hidden)
        self.register_buffer("seen", torch.tensor(0))  # batches of the stage that peaks

    def loss(self, features, targets, stage):
        self.seen += self.training and stage == "peak"
        worse = stage == "worse" or self.seen > BATCHES
        return {name: -value if worse else value for name, value in super().loss(features, targets, stage).items()}

    @torch.no_grad()
    def double(self, ctx):
        Recorder.visits.append(("double", ctx.epoch, len(Recorder.batches)))
        self.classifier.weight.mul_(2)
        ctx.log({"doubled": 1.0})

    @torch.no_grad()
    def shift(self, ctx):
        Recorder.visits.append(("shift", ctx.epoch, len(Recorder.batches)))
        for _ in ctx.track(range(3), "shifting"):
            self.classifier.bias += 0.1 * torch.rand(self.num_labels)

    def diverge(self, ctx):
        spoil(self.classifier.weight)

    def few(self, targets, seed):
        return torch.arange(0, len(targets), 3)


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def kinds(folder):
    return [(row["step"], *sorted(name for name in row if not name.startswith("val/"))) for row in rows_of(folder)]


def ckpt(folder, name):
    return folder / "checkpoints" / f"{name}.ckpt"


def checkpoint(folder, name):
    return read_checkpoint(ckpt(folder, name))


def weights(folder, name):
    return checkpoint(folder, name)["state_dict"]


def differing(one, other):
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def parameters(names):
    return {name for name in names if "metrics" not in name and name != "head.seen"}


def recorded(key):
    """What was noted, by stage."""
    found: dict[str, list[Any]] = {}
    for batch in Recorder.batches:
        found.setdefault(batch["stage"], []).append(batch[key])
    return found


def with_transfer(config, stages=TRANSFER):
    arguments = {"hidden": 8, "tail_labels": 4, "draws": 4, "shots": 2}
    return config(stages, {"class_path": "PrototypeTransfer", "init_args": arguments})
