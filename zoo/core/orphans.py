"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from zoo.core.console import is_first_process
from zoo.core.files import is_alive

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0
FIRST_PROCESS = "ZOO_FIRST_PROCESS"  # id of rank 0, for the processes that DDP starts
C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before a fork: see `signal_on_parent_death`


def signal_on_parent_death(number: signal.Signals) -> None:
    """Let the kernel send a signal to this process when its parent ends; only Linux supports this.

    Safe between fork and exec: it imports and allocates nothing.
    """
    if C_LIBRARY is not None:
        C_LIBRARY.prctl(PR_SET_PDEATHSIG, number)


def end_with_parent(parent: int) -> None:
    """Kill this process when its parent, which has this id, ends."""
    signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != parent:  # it has just ended
        os._exit(1)
    if C_LIBRARY is None:
        threading.Thread(target=_exit_without_parent, args=(parent,), daemon=True).start()


def _exit_without_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def end_with_first_process() -> None:
    """On ranks that Lightning starts: end when the first process is killed, which they would wait for otherwise."""
    if is_first_process():
        os.environ[FIRST_PROCESS] = str(os.getpid())
    elif (first := int(os.environ.get(FIRST_PROCESS, 0))) == os.getppid():
        end_with_parent(first)
    elif first and not is_alive(first):
        os._exit(1)
