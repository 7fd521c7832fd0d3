"""SIGTERM to any one of the processes: the run saves, stops, and resumes to the same end."""

from __future__ import annotations

import signal

import pytest

from tests.ddp.runs import assert_same_run, only_run
from zoo.training.checkpoint import read_checkpoint

pytestmark = [pytest.mark.ddp, pytest.mark.kill]


@pytest.mark.parametrize(("processes", "to"), [(1, "0"), (2, "1")], ids=["1-process", "2-processes-to-the-second"])
def test_sigterm_saves_and_stops(fit, folder, processes, to):
    fit("--name=whole", processes=processes)
    for place, step in (("head:3", 3), ("transfer", None), ("finetune:2", None)):
        error = fit(
            "--name=cut", "--ckpt_path=last", code=128 + signal.SIGTERM, TERM=place, TERM_RANK=to, processes=processes
        )
        assert "SIGTERM" in error
        assert "Traceback" not in error
        cut = only_run(folder, "cut")
        last = read_checkpoint(cut / "checkpoints" / "last.ckpt")
        assert step in (None, last["global_step"])  # it finished its batch, and no other
        assert not (cut / "metrics.json").exists()
    fit("--name=cut", "--ckpt_path=last", processes=processes)
    assert_same_run(only_run(folder, "whole"), only_run(folder, "cut"))
