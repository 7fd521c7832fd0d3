"""Stages on two processes: what a transition reads and makes, and weights that stay the same on both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ddp.runs import environment
from zoo.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 12}
trainer:
  accelerator: cpu
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
  callbacks: [{class_path: noting.Hash}]
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8}}
  head: {class_path: noting.Noting, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2}}
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
stages:
  - name: head
    epochs: 2
    trainable: [head.project.*, head.head, head.scale]
    documents: head_documents
  - {name: transfer, on_enter: [transfer]}
  - {name: finetune, epochs: 2, documents: tail_documents, lr: 1.0e-3}
wandb: {mode: disabled}
"""
# Writes, for each process, the documents that the transition read, and a hash of the weights at some places.
NOTING = """
import hashlib, json, os
from pathlib import Path
from pytorch_lightning import Callback
from heads import PrototypeTransfer

def note(**facts):
    rank = os.environ.get("LOCAL_RANK", "0")
    with Path(os.environ["NOTES"], rank).open("a") as file:
        file.write(json.dumps(facts) + "\\n")

class Noting(PrototypeTransfer):
    def transfer(self, ctx):
        rows = [row for _, batch in ctx.train_features() for row in batch.rows.tolist()]
        note(kind="rows", rows=rows, targets=len(ctx.train_targets()))
        super().transfer(ctx)

class Hash(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        note(kind="modes", stage=pl_module.stage.name, dropout=pl_module.backbone.dropout.training)

    def on_train_epoch_end(self, trainer, pl_module):
        self.note(trainer, pl_module)

    def on_fit_end(self, trainer, pl_module):
        self.note(trainer, pl_module)

    def note(self, trainer, pl_module):
        digest = hashlib.sha256()
        for value in pl_module.parameters():
            digest.update(value.detach().numpy().tobytes())
        note(kind="weights", stage=pl_module.stage.name, epoch=trainer.current_epoch, hash=digest.hexdigest())
"""
TRANSFERRED = ("head.prototypes", "head.map", "head.tail")


@pytest.fixture
def zoo(tmp_path):
    """Train in a folder of its own; returns the run folder and what each process noted."""
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "noting.py").write_text(NOTING)

    def run(name: str, processes: int, *args: str) -> tuple[Path, list[list[dict]]]:
        notes = tmp_path / f"notes-{name}"
        notes.mkdir()
        devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config=tiny.yaml", f"--name={name}", *devices, *args],
            cwd=tmp_path,
            env=environment(tmp_path) | {"NOTES": str(notes)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / "runs" / name).iterdir()
        files = sorted(notes.iterdir())
        assert len(files) == processes
        return folder, [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    return run


def of_kind(notes, kind):
    return [[note for note in process if note["kind"] == kind] for process in notes]


def test_a_transition_on_two_processes_reads_each_document_once_and_makes_what_one_process_makes(zoo):
    first, notes = zoo("two", 2)
    reads = of_kind(notes, "rows")
    assert [len(process) for process in reads] == [1, 1]
    (total,) = {process[0]["targets"] for process in reads}
    assert total % 2 == 1  # so that the processes cannot have equal shares
    assert sorted(reads[0][0]["rows"] + reads[1][0]["rows"]) == list(range(total))

    # The second stage trains what the first one froze: without a new reducer its gradients would not be shared.
    hashes = of_kind(notes, "weights")
    assert hashes[0] == hashes[1]
    assert [note["stage"] for note in hashes[0]] == ["head", "head", "finetune", "finetune", "finetune"]
    assert len({note["hash"] for note in hashes[0]}) == 4  # the last two are of one moment

    # The first stage does not train the backbone.
    for process in of_kind(notes, "modes"):
        assert {(note["stage"], note["dropout"]) for note in process} == {("head", False), ("finetune", True)}

    start = str(first / "checkpoints" / "head.ckpt")
    only = ["--from_stage=transfer", f"--ckpt={start}", "--stages.finetune.epochs=0", "--final_test=false"]
    made = []
    for processes in (1, 2):
        folder, notes = zoo(f"from-{processes}", processes, *only)
        rows = [row for process in of_kind(notes, "rows") for note in process for row in note["rows"]]
        assert sorted(rows) == list(range(total))
        made.append(read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"])
    before = read_checkpoint(start)["state_dict"]
    for name in TRANSFERRED:
        assert not torch.equal(made[0][name], before[name])
        assert torch.allclose(made[0][name], made[1][name], rtol=0, atol=1e-6), name
    assert [bool(weights["head.ready"]) for weights in (before, *made)] == [False, True, True]
