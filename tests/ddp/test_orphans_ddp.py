"""A killed first process takes the others with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddp.conftest import devices
from tests.ddp.runs import environment
from tests.support.processes import has_ended, wait_until
from zoo.core.files import is_alive

pytestmark = [pytest.mark.ddp, pytest.mark.kill]
NOTING = """
import os, time
from pathlib import Path
from pytorch_lightning import Callback

class Ids(Callback):
    def on_train_start(self, trainer, pl_module):
        if trainer.global_rank == 1:
            Path("second.new").write_text(str(os.getpid()))
            Path("second.new").rename("second")
            time.sleep(600)  # otherwise it would notice that the connection is lost
"""


def test_kill_9_of_the_first_process_leaves_none(folder: Path, shared_cache: Path):
    (folder / "noting.py").write_text(NOTING)
    command = [sys.executable, "-m", "zoo", "fit", "--config=tiny.yaml", *devices(2), "--stages.head.epochs=1000"]
    variables = environment(folder, shared_cache)
    with subprocess.Popen(
        [*command, "--trainer.callbacks=noting.Ids"], cwd=folder, env=variables, start_new_session=True
    ) as run:
        try:
            wait_until((folder / "second").exists, 300)
            second = int((folder / "second").read_text())
            assert second != run.pid
            assert is_alive(second)
            run.send_signal(signal.SIGKILL)
            run.wait()
            wait_until(lambda: has_ended(second), 30)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
