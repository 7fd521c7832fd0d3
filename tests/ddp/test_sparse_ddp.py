"""Label embeddings with sparse gradients on two processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from tests.ddp.runs import START, only_run, weights
from zoo.training.checkpoint import read_checkpoint
from zoo.training.optimizers import average_sparse_gradients

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3}}}}
  head: rows.Rows
  optimizer: {{class_path: SGD, init_args: {{lr: 0.5}}}}
stages:
  - {{name: rest, epochs: 1, trainable: ["backbone.*", "head.project.*"], gradient_clip_val: 0}}
  - {{name: all, epochs: 2}}
"""
# Its loss reads the batch's labels and a few others; in one batch of the process $OVERFLOW the gradients of these rows
# are infinite. `Scaled` scales gradients as half precision does, `Keep` writes what each process has at the end.
HEAD = """
import os
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback
from pytorch_lightning.plugins import MixedPrecision
from torch import nn
from fragile import Mortal
from heads import DenseHead

class Embedded(DenseHead):
    def __init__(self, dim, space, sparse: bool = True):
        super().__init__(dim, space)
        self.project = nn.Linear(dim, dim)
        self.labels = nn.Embedding(space.num_labels, dim, sparse=sparse)

    def forward(self, features):
        return self.project(features.pooled) @ self.labels.weight.T

    def loss(self, features, targets, stage):
        known = targets.indices < self.num_labels
        labels = targets.indices[known]
        rows = torch.cat([labels, torch.randint(self.num_labels, (4,))]).unique()
        vectors = self.labels(rows)
        if os.environ.get("OVERFLOW") == os.environ.get("LOCAL_RANK", "0") and stage == "all" and self.seen[stage] == 3:
            vectors.register_hook(lambda gradient: gradient * torch.inf)
        logits = self.project(features.pooled) @ vectors.T
        positives = logits[targets.rows[known], torch.searchsorted(rows, labels)]
        return {"loss": (F.softplus(logits).sum() - positives.sum()) / len(logits)}

class Rows(Mortal, Embedded): ...

class Scaled(MixedPrecision):
    def autocast_context_manager(self):
        return torch.autocast("cpu", enabled=False)

class Keep(Callback):
    def on_train_end(self, trainer, pl_module):
        if trainer.world_size > 1:
            torch.save(pl_module.state_dict(), f"kept-{trainer.global_rank}.pt")
"""


@pytest.fixture
def sparse(fit, folder):
    """`fit` on two processes, which must end with the same weights."""
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "rows.py").write_text(HEAD)
    given = ["--data.num_labels=40", "--trainer.gradient_clip_val=0.5", "--trainer.callbacks=rows.Keep"]

    def run(*args, **options):
        errors = fit(*given, *args, processes=2, **options)
        if not options.get("code"):
            first, second = (torch.load(folder / f"kept-{rank}.pt") for rank in range(2))
            assert all(torch.equal(first[name], second[name]) for name in first)
        return errors

    return run


def test_sparse_and_dense_gradients_lead_to_the_same_weights(sparse, folder):
    args = ["--trainer.accumulate_grad_batches=2", "--final_test=false"]
    for name, setting in (("rows", "true"), ("dense", "false")):
        sparse(f"--name={name}", f"--model.head.sparse={setting}", *args)
    rows, dense = weights(folder, "rows"), weights(folder, "dense")
    torch.testing.assert_close(rows, dense, rtol=0, atol=1e-6)
    before = weights(folder, "rows", "rest.ckpt")
    assert (rows["head.labels.weight"] - before["head.labels.weight"]).abs().max() > 1e-2


def test_where_rows_of_one_process_overflow_both_leave_out_the_step(sparse, folder):
    plugin = "{class_path: rows.Scaled, init_args: {precision: 16-mixed, device: cpu}}"
    sparse("--name=scaled", f"--trainer.plugins=[{plugin}]", "--final_test=false", OVERFLOW="1")
    assert all(value.isfinite().all() for value in weights(folder, "scaled").values())
    state = read_checkpoint(only_run(folder, "scaled") / "checkpoints" / "last.ckpt")["Scaled"]
    assert state["scale"] == 2.0**15  # halved once


def test_a_stage_of_nothing_but_rows_is_refused_at_the_start(sparse):
    errors = sparse('--stages.all.trainable=["head.labels.*"]', code=2)
    (line,) = {line for line in errors.splitlines() if line.startswith("error: ")}  # of both processes
    assert "all" in line
    assert "head.labels.weight" in line
    assert "Traceback" not in errors


def gradient(rank: int, turn: int) -> torch.Tensor | None:
    """Some rows, one of them twice; in turn 1 the second process has none, in turn 2 nobody has."""
    if turn == 2 or (turn == 1 and rank == 1):
        return None
    generator = torch.Generator().manual_seed(10 * turn + rank)
    rows = torch.randint(9, (3 + 4 * rank,), generator=generator)
    rows = torch.cat([rows, rows[:1]])
    values = torch.randn(len(rows), 5, generator=generator)
    return torch.sparse_coo_tensor(rows[None], values, (9, 5), check_invariants=True)


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    parameters = [nn.Parameter(torch.zeros(9, 5)) for _ in range(3)]
    for turn, parameter in enumerate(parameters):
        parameter.grad = gradient(rank, turn)
    average_sparse_gradients([*parameters, parameters[0]], 2)  # one has two names
    torch.save([parameter.grad for parameter in parameters], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_shared_rows_are_the_mean_of_dense_gradients_and_the_same_on_both_processes(tmp_path):
    mp.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first[2] is None
    assert second[2] is None
    for turn in range(2):
        dense = [g.to_dense() for rank in range(2) if (g := gradient(rank, turn)) is not None]
        assert first[turn].is_coalesced()
        assert torch.equal(first[turn].indices(), second[turn].indices())
        assert torch.equal(first[turn].values(), second[turn].values())
        torch.testing.assert_close(first[turn].to_dense(), torch.stack(dense).sum(0) / 2)
        touched = torch.stack(dense).abs().sum((0, 2)).nonzero().flatten()
        assert first[turn].indices()[0].tolist() == touched.tolist()
