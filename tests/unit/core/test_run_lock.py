"""Only one run trains in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from zoo.core import run_lock
from zoo.core.errors import UserError
from zoo.core.run_lock import lock_run, owner

HOLD = """
import os, sys, time
from pathlib import Path
from zoo.core.run_lock import lock_run
lock = lock_run(Path(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has locked the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        yield process
        process.kill()


def test_the_process_that_trains_is_named_and_its_end_frees_the_folder(holder, tmp_path):
    with pytest.raises(UserError) as refused:
        lock_run(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert f"process {holder.pid}" in str(refused.value)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = lock_run(tmp_path)
    assert owner(tmp_path / ".lock")[0] == os.getpid()
    lock.release()
    lock_run(tmp_path).release()


def test_what_a_killed_process_leaves_behind_is_waited_for(tmp_path, monkeypatch):
    """Its loader workers keep the lock for some seconds."""
    held = lock_run(tmp_path)
    (tmp_path / ".lock").write_text(f"4194999\n{run_lock.platform.node()}\n")
    waited = []
    acquire = run_lock.FileLock.acquire

    def recorded(self, timeout):
        waited.append(timeout)
        if timeout:
            held.release()
        return acquire(self, timeout)

    monkeypatch.setattr(run_lock.FileLock, "acquire", recorded)
    lock_run(tmp_path).release()
    assert waited == [0, run_lock.WAIT_SECONDS]
