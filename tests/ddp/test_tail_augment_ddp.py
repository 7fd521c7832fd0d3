"""Augmented copies are the same on any number of processes and workers, and after a kill."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.ddp.runs import START, assert_kills_change_nothing, only_run
from zoo.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3}}}}
  head: {{class_path: watched.Watched, init_args: {{fraction: 0.3, head: Linear, tail: Linear}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages:
  - {{name: head, epochs: 1, documents: head_documents, trainable: ["backbone.*", "head.head.*"]}}
  - {{name: tail, epochs: 2, documents: tail_documents, trainable: ["backbone.*", "head.tail.*"]}}
  - {{name: calibrate, on_enter: [calibrate]}}
"""
AUGMENT = [
    "--trainer.callbacks=TailAugment",
    *(f"--trainer.callbacks.{option}" for option in ("stage=tail", "copies=2", "keep=0.5", "swap=0.5", "fraction=0.3")),
]
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
def augmented(fit, folder):
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "watched.py").write_text(WATCHED)
    return partial(fit, *AUGMENT)


def documents(folder: Path, name: str) -> dict[tuple[str, int], list[list[int]]]:
    """By stage and row number, what it looked like each time."""
    found: dict[tuple[str, int], list[list[int]]] = {}
    for file in folder.glob(f"{name}-*"):
        for line in file.read_text().splitlines():
            stage, row, ids = json.loads(line)
            if row >= 0:
                found.setdefault((stage, row), []).append(ids)
    return found


def test_copies_are_the_same_in_every_epoch_on_one_and_on_two_processes(augmented, folder):
    for processes, name, workers in ((1, "one", 2), (2, "two", 0)):
        given = (f"--name={name}", f"--data.num_workers={workers}", "--final_test=false")
        augmented(*given, processes=processes, SEEN=str(folder / name))
    one, two = documents(folder, "one"), documents(folder, "two")
    assert one == two
    for (stage, _), times in one.items():
        assert len(times) == (2 if stage == "tail" else 1)
        assert all(ids == times[0] for ids in times)
    rows = {stage: {row for where, row in one if where == stage} for stage in ("head", "tail")}
    last = only_run(folder, "one") / "checkpoints" / "last.ckpt"
    size = read_checkpoint(last)["zoo"]["space"]["num_documents"]
    originals = {row for row in rows["tail"] if row < size}
    assert len(rows["tail"]) == 3 * len(originals)
    assert max(rows["head"]) < size


@pytest.mark.kill
def test_kills_change_nothing(augmented, folder):
    given = ("--last.every_n_train_steps=2", "--data.num_workers=2")
    assert_kills_change_nothing(augmented, folder, ["tail:4"], processes=2, resuming=given)
