"""Processes that tests wait for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def has_ended(process: int) -> bool:
    """Whether it is gone, or a zombie that nobody has waited for."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return not state.strip() or state.startswith("Z")


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
