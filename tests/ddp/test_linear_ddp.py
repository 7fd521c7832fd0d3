"""Linear engines on two processes, and stopped within their only stage."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

from tests.ddp.runs import START, assert_kills_change_nothing, assert_same_run, only_run, weights

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model: {{backbone: Words, head: {{class_path: engines.FragileSvm}}}}
stages:
  - {{name: fit, on_enter: [fit]}}
"""
ENGINES = """
import os, time
import heads.engines.omikuji_trees, heads.engines.svm
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
            heads.engines.omikuji_trees.train_trees = lambda *_: time.sleep(120)
        super().learn(*args)

if "SLOW" in os.environ:
    heads.engines.svm.GROUP = 1  # twenty labels, two at a time, of three seconds each
"""


@pytest.fixture
def engine(folder, fit):
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "engines.py").write_text(ENGINES)
    return fit


@pytest.mark.kill
def test_a_kill_changes_nothing_and_two_processes_have_the_machines_of_one(engine, folder):
    whole = assert_kills_change_nothing(engine, folder, ["fit"], processes=2)
    engine("--name=alone")
    assert_same_run(only_run(folder, "alone"), whole)


def test_trees_reach_all_processes(engine, folder):
    engine("--name=trees", "--model.head=Parabel", "--model.head.max_leaf=5", processes=2)
    state = weights(folder, "trees", "best.ckpt")["head._extra_state"]
    assert {"settings.json", "tree0.cbor"} <= set(state)
    assert all(part.dtype == torch.uint8 for part in state.values())
    assert '"P@1"' in (only_run(folder, "trees") / "metrics.json").read_text()


# A machine that is being fitted is fitted to its end before a SIGTERM is heard.
@pytest.mark.kill
@pytest.mark.parametrize(
    ("head", "number", "code"), [("FragileSvm", signal.SIGTERM, 143), ("FragileTrees", signal.SIGINT, 130)]
)
def test_a_signal_within_the_fit_ends_it(engine, start, head, number, code):
    # The first process alone gets the signal, while its own processes are at work.
    with start("fit", "--config=tiny.yaml", "--name=slow", f"--model.head=engines.{head}", SLOW="1") as run:
        working = children_of(run.process)
        sent = time.monotonic()
        run.process.send_signal(number)
        shown = run.communicate(timeout=100)
        assert run.returncode == code, shown
        assert "Traceback" not in shown
        assert time.monotonic() - sent < 25  # the whole would take at least thirty more
        assert not any(Path(f"/proc/{process}").exists() for process in working)


def children_of(run):
    """Processes of a run, as soon as there are any."""
    file, end = Path(f"/proc/{run.pid}/task/{run.pid}/children"), time.monotonic() + 200
    while not (found := file.read_text().split()) and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    return found
