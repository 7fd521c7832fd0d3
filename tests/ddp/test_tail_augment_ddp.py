"""Augmented copies are the same on any number of processes and workers, and after a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.ddp.runs import assert_same_run, only_run
from zoo.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}
trainer:
  accelerator: cpu
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - {class_path: TailAugment, init_args: {stage: tail, copies: 2, keep: 0.5, swap: 0.5, fraction: 0.3}}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8, dropout: 0.3}}
  head: {class_path: watched.Watched, init_args: {fraction: 0.3, head: Linear, tail: Linear}}
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
stages:
  - {name: head, epochs: 1, documents: head_documents, trainable: ["backbone.*", "head.head.*"]}
  - {name: tail, epochs: 2, documents: tail_documents, trainable: ["backbone.*", "head.tail.*"]}
  - {name: calibrate, on_enter: [calibrate]}
wandb: {mode: disabled}
"""
WATCHED = """
import json, os
from fragile import Mortal
from heads import Decoupled

class Watched(Mortal, Decoupled):
    '''Notes the documents that it is trained on.'''

    def loss(self, features, targets, stage):
        if seen := os.environ.get("SEEN"):
            batch = features.batch
            with open(f"{seen}-{os.environ.get('LOCAL_RANK', '0')}", "a") as file:
                for row, ids, mask in zip(batch.rows.tolist(), batch.ids, batch.mask):
                    file.write(json.dumps([stage, row, ids[mask].tolist()]) + "\\n")
        return super().loss(features, targets, stage)
"""


@pytest.fixture
def augmented(staged, tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "watched.py").write_text(WATCHED)
    return staged


def devices(processes):
    return [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]


def documents(folder: Path, name: str) -> dict[tuple[str, int], list[list[int]]]:
    """By stage and row number, what it looked like each time."""
    found: dict[tuple[str, int], list[list[int]]] = {}
    for file in folder.glob(f"{name}-*"):
        for line in file.read_text().splitlines():
            stage, row, ids = json.loads(line)
            if row >= 0:
                found.setdefault((stage, row), []).append(ids)
    return found


def test_copies_are_the_same_in_every_epoch_on_one_and_on_two_processes(augmented, tmp_path):
    augmented("--name=one", *devices(1), "--data.num_workers=2", SEEN=str(tmp_path / "one"))
    augmented("--name=two", *devices(2), SEEN=str(tmp_path / "two"))
    one, two = documents(tmp_path, "one"), documents(tmp_path, "two")
    assert one == two
    for (stage, _), times in one.items():
        assert len(times) == (2 if stage == "tail" else 1)
        assert all(ids == times[0] for ids in times)
    rows = {stage: {row for where, row in one if where == stage} for stage in ("head", "tail")}
    last = only_run(tmp_path, "one") / "checkpoints" / "last.ckpt"
    size = read_checkpoint(last)["zoo"]["space"]["num_documents"]
    originals = {row for row in rows["tail"] if row < size}
    assert len(rows["tail"]) == 3 * len(originals)
    assert max(rows["head"]) < size


@pytest.mark.parametrize(
    ("processes", "workers", "every"), [(1, 2, 2), (2, 0, None)], ids=["1-process-2-workers-mid-epoch", "2-processes"]
)
def test_kills_change_nothing(augmented, tmp_path, processes, workers, every):
    saving = [] if every is None else [f"--last.every_n_train_steps={every}"]
    augmented("--name=whole", *devices(processes))
    args = ["--name=cut", *devices(processes), *saving, f"--data.num_workers={workers}", "--ckpt_path=last"]
    for place in ("head:3", "tail:4", f"tail:{44 // processes}"):
        augmented(*args, code=-signal.SIGKILL, KILL=place)
    augmented(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))
