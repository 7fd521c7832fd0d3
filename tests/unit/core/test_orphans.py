"""Children end with a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.processes import has_ended, wait_until

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=os.environ | {"LOCAL_RANK": "1"})
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import os, time
from zoo.core import orphans
if os.environ.get("NO_PRCTL"):
    orphans.C_LIBRARY, orphans.POLL_SECONDS = None, 0.05
orphans.end_with_first_process()
print("ready", flush=True)
time.sleep(60)
"""
FIRST = "from zoo.core.orphans import end_with_first_process; end_with_first_process()\n"


@pytest.mark.parametrize("variables", [{}, {"NO_PRCTL": "1"}], ids=["kernel", "watchdog"])
def test_a_rank_ends_with_the_first_process(variables):
    command = [sys.executable, "-c", FIRST + PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        assert not has_ended(child)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: has_ended(child), 30)
