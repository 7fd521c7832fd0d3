"""Linear engines on two processes, and cut within their only stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.ddp.runs import assert_same_run, environment, only_run
from zoo.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 8, eval_batch_size: 16}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model: {backbone: Words, head: {class_path: engines.FragileSvm}}
stages:
  - {name: fit, on_enter: [fit]}
wandb: {mode: disabled}
"""
ENGINES = """
import os, time
import heads.omikuji_trees, heads.svm
from fragile import Mortal
from heads import OneVsRestSvm, Parabel

class FragileSvm(Mortal, OneVsRestSvm):
    def learn(self, words, labels, ctx):
        super().learn(words, labels, ctx)
        self.meet("fit")

    def _workers(self, *args):
        workers = super()._workers(*args)
        if "SLOW" in os.environ:
            work = workers.work
            workers.work = lambda number: time.sleep(3) or work(number)
        return workers

class FragileTrees(Parabel):
    def learn(self, *args):
        if "SLOW" in os.environ:
            heads.omikuji_trees.train_trees = lambda *_: time.sleep(120)
        super().learn(*args)

if "SLOW" in os.environ:
    heads.svm.GROUP = 1  # twenty labels, two at a time, of three seconds each
"""


def devices(processes):
    return [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]


@pytest.fixture
def engine(tmp_path, staged):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "engines.py").write_text(ENGINES)
    return staged


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kill_changes_nothing(engine, tmp_path, processes):
    engine("--name=whole", *devices(processes))
    args = ["--name=cut", *devices(processes), "--ckpt_path=last"]
    engine(*args, code=-signal.SIGKILL, KILL="fit")
    engine(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))


def test_two_processes_have_the_machines_of_one(engine, tmp_path):
    for processes in (1, 2):
        engine(f"--name=on-{processes}", *devices(processes))
    assert_same_run(only_run(tmp_path, "on-1"), only_run(tmp_path, "on-2"))


def test_trees_reach_all_processes(engine, tmp_path):
    given = ["--model.head=Parabel", "--model.head.max_leaf=5"]
    engine("--name=trees", *given, *devices(2))
    folder = only_run(tmp_path, "trees")
    weights = read_checkpoint(folder / "checkpoints" / "best.ckpt")["state_dict"]
    assert {"settings.json", "tree0.cbor"} <= set(weights["head._extra_state"])
    assert all(part.dtype == torch.uint8 for part in weights["head._extra_state"].values())
    assert '"P@1"' in (folder / "metrics.json").read_text()


# Lightning ends with 1 on Ctrl-C. A machine that is being fitted is fitted to its end before a SIGTERM is heard.
@pytest.mark.parametrize("head", ["FragileSvm", "FragileTrees"])
@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGTERM, 143, "stopped by"), (signal.SIGINT, 1, "Detected")]
)
def test_a_signal_within_the_fit_ends_it(engine, tmp_path, head, number, code, line):
    # The first process alone gets the signal, while its own processes are at work.
    run = subprocess.Popen(
        [sys.executable, "-m", "zoo", "fit", "--config", "tiny.yaml", "--name=slow", f"--model.head=engines.{head}"],
        cwd=tmp_path,
        env=environment(tmp_path) | {"SLOW": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell lets what runs in its background ignore Ctrl-C, these tests too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        working = children_of(run)
        sent = time.monotonic()
        run.send_signal(number)
        _, shown = run.communicate(timeout=100)
        assert run.returncode == code, shown
        assert line in shown
        assert time.monotonic() - sent < 25  # the whole would take at least thirty more
        assert not any(Path(f"/proc/{process}").exists() for process in working)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


def children_of(run):
    """Processes of a run, as soon as there are any."""
    file, end = Path(f"/proc/{run.pid}/task/{run.pid}/children"), time.monotonic() + 200
    while not (found := file.read_text().split()) and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    return found
