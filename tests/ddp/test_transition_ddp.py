"""Stages on two processes: what a transition reads and makes, and weights that stay the same on both."""

from __future__ import annotations

import json

import pytest
import torch

from tests.ddp.runs import START, only_run, weights

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8}}}}
  head: {{class_path: noting.Noting, init_args: {{hidden: 12, tail_labels: 6, draws: 4, shots: 2}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages:
  - name: head
    epochs: 2
    trainable: [head.project.*, head.head, head.scale]
    documents: head_documents
  - {{name: transfer, on_enter: [transfer]}}
  - {{name: finetune, epochs: 2, documents: tail_documents, lr: 1.0e-3}}
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
def noted(fit, folder):
    """Train; returns what each process noted."""
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "noting.py").write_text(NOTING)

    def run(name: str, processes: int, *args: str) -> list[list[dict]]:
        notes = folder / f"notes-{name}"
        notes.mkdir()
        given = (f"--name={name}", "--trainer.callbacks=noting.Hash", "--data.eval_batch_size=12", "--final_test=false")
        fit(*given, *args, processes=processes, NOTES=str(notes))
        files = sorted(notes.iterdir())
        assert len(files) == processes
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    return run


def of_kind(notes, kind):
    return [[note for note in process if note["kind"] == kind] for process in notes]


def test_a_transition_on_two_processes_reads_each_document_once_and_makes_what_one_process_makes(noted, folder):
    notes = noted("two", 2)
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

    start = only_run(folder, "two") / "checkpoints" / "head.ckpt"
    only = ["--from_stage=transfer", f"--ckpt={start}", "--stages.finetune.epochs=0"]
    made = []
    for processes in (1, 2):
        notes = noted(f"from-{processes}", processes, *only)
        rows = [row for process in of_kind(notes, "rows") for note in process for row in note["rows"]]
        assert sorted(rows) == list(range(total))
        made.append(weights(folder, f"from-{processes}"))
    before = weights(folder, "two", "head.ckpt")
    for name in TRANSFERRED:
        assert not torch.equal(made[0][name], before[name])
        assert torch.allclose(made[0][name], made[1][name], rtol=0, atol=1e-6), name
    assert [bool(state["head.ready"]) for state in (before, *made)] == [False, True, True]
