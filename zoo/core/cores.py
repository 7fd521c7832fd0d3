"""CPU cores available to this process, and threads on them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

CGROUPS = Path("/sys/fs/cgroup")
THREADS, WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of CPU cores in the affinity mask, or in the CPU quota of the container if that is lower.

    All cores on macOS and Windows, which have neither.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(cores, quota(CGROUPS)))


def quota(folder: Path) -> float:
    """CPU quota in cores, as container runtimes set it (control groups, version 2 or 1); infinite without one."""
    try:
        if (file := folder / "cpu.max").is_file():
            limit, period = file.read_text("ascii").split()
        else:
            limit, period = ((folder / "cpu" / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
        return float(limit) / float(period) if limit != "max" and float(limit) > 0 < float(period) else math.inf
    except (OSError, ValueError):
        return math.inf


def limit_threads() -> None:
    """Let PyTorch, which does not know quotas, use no more threads than cores, unless the user said how many."""
    import torch

    if THREADS not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_cores()))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Results of a function that releases the GIL, in order; a single item needs no thread: its start takes longer."""
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(available_cores(), len(items))) as threads:
        return list(threads.map(function, items))


def let_threads_sleep() -> None:
    """Let OpenMP threads that wait for each other sleep; to be called before PyTorch is loaded.

    By default they spin, and use up their own time if the thread that they wait for does not run, because other
    processes have the cores.
    """
    os.environ.setdefault(WAITING, "PASSIVE")
