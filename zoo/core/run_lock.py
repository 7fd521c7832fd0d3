"""Lock of a run folder: only one run trains in it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout

from zoo.core.console import warn
from zoo.core.errors import UserError, first_line
from zoo.core.files import is_alive

WAIT_SECONDS = 15.0  # loader workers of a killed process keep its lock until they notice


def lock_run(folder: Path) -> FileLock:
    """Lock a run folder until the lock is released or this process ends; raises an error if another one has it."""
    file = folder / ".lock"
    lock = FileLock(file)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            process, host = owner(file)
            if host == platform.node() and is_alive(process):
                raise
            lock.acquire(timeout=WAIT_SECONDS)
        file.write_text(f"{os.getpid()}\n{platform.node()}\n", "utf8")
    except Timeout:
        process, host = owner(file)
        where = "" if host == platform.node() else f" on {host or 'another machine'}"
        raise UserError(
            f"the run in {folder} is still being trained by process {process or 'of unknown id'}{where}: "
            "wait for it or stop it, or start a new run without `ckpt_path`"
        ) from None
    except OSError as error:  # a file system without locks
        warn(f"{folder} cannot be locked ({first_line(error)}): do not resume this run while it is running")
    return lock


def owner(file: Path) -> tuple[int, str]:
    """Process and machine that have locked a run folder; 0 and "" if they are unknown."""
    try:
        process, host, *_ = file.read_text("utf8").splitlines()
        return int(process), host
    except (OSError, ValueError):  # Windows does not let others read a locked file
        return 0, ""
