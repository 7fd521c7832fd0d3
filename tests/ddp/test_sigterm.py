"""SIGTERM, to any one of the processes: the run saves, stops, and goes on later as if nothing had been."""

from __future__ import annotations

import signal

import pytest

from tests.ddp.runs import assert_same_run, only_run
from zoo.checkpoint import read_checkpoint


@pytest.mark.parametrize(("processes", "to"), [(1, "0"), (2, "1")], ids=["1-process", "2-processes-to-the-second"])
def test_sigterm_saves_and_stops(staged, tmp_path, processes, to):
    devices = [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]
    staged("--name=whole", *devices)
    args = ["--name=cut", *devices, "--ckpt_path=last"]
    for place, step in (("head:3", 3), ("finetune:2", None)):
        error = staged(*args, code=128 + signal.SIGTERM, TERM=place, TERM_RANK=to)
        assert "stopped by SIGTERM" in error
        assert "Traceback" not in error
        last = read_checkpoint(only_run(tmp_path, "cut") / "checkpoints" / "last.ckpt")
        assert step in (None, last["global_step"])  # it finished its batch, and no other
    staged(*args)
    assert_same_run(only_run(tmp_path, "whole"), only_run(tmp_path, "cut"))


def test_sigterm_in_a_transition_stops_and_the_transition_is_repeated(staged, tmp_path):
    staged("--name=whole")
    staged("--name=cut", code=128 + signal.SIGTERM, TERM="transfer")
    cut = only_run(tmp_path, "cut")
    assert not (cut / "metrics.json").exists()
    staged("--name=cut", "--ckpt_path=last")
    assert_same_run(only_run(tmp_path, "whole"), cut)
