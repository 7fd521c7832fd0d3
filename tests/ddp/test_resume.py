"""Killed in any stage, inside an epoch or a transition, and resumed: the run ends as if nothing had been."""

from __future__ import annotations

import signal

import pytest

from tests.ddp.runs import assert_same_run, only_run


@pytest.mark.parametrize(
    ("processes", "workers", "every"),
    [(1, 0, None), (1, 2, 2), (2, 0, 2), (2, 2, None)],
    ids=["1-process", "1-process-2-workers-mid-epoch", "2-processes-mid-epoch", "2-processes-2-workers"],
)
def test_kills_change_nothing(staged, tmp_path, processes, workers, every):
    devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
    saving = [] if every is None else [f"--last.every_n_train_steps={every}"]
    staged("--name=whole", *devices)
    args = ["--name=cut", *devices, *saving, f"--data.num_workers={workers}", "--ckpt_path=last"]
    epoch = {"head": 14 // processes, "finetune": 4 // processes}  # batches
    places = [f"head:{epoch['head'] + 4}", f"head:{epoch['head'] // 2 + 2}", "transfer"]
    for place in [*places, "finetune:2", f"finetune:{epoch['finetune'] + 1}"]:
        staged(*args, code=-signal.SIGKILL, KILL=place)
    staged(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))
