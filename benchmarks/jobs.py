"""Parallel runs of `zoo fit` for the tables of the docs; finished runs are skipped, interrupted ones are resumed."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def fit(runs: Path, name: str, *args: str, threads: int = 1) -> Path:
    """Train the run `name` unless it is finished, and return its folder."""
    if not (folder := finished(runs, name)):
        log = runs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        options = ["--wandb.mode=disabled", "--trainer.enable_progress_bar=false", "--ckpt_path=last"]
        command = [sys.executable, "-m", "zoo", "fit", *args, f"--runs={runs}", f"--name={name}", *options]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("a") as output:
            subprocess.run(command, stdout=output, stderr=output, env=environment, check=True)
        folder = finished(runs, name)
        assert folder, f"see {log}"
    print(f"{name}: {folder}", file=sys.stderr, flush=True)
    return folder


def finished(runs: Path, name: str) -> Path | None:
    folders = sorted(path.parent for path in (runs / name).glob("*/metrics.json"))
    return folders[-1] if folders else None


def run_parallel(tasks: Iterable[Callable[[], Any]], jobs: int) -> list[Any]:
    with ThreadPoolExecutor(jobs) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def results(folder: Path) -> dict[str, float]:
    """Read the metrics of a run in per cent, and its training time."""
    content = json.loads((folder / "metrics.json").read_text())
    metrics = content["metrics"].items()
    return {k: v if k.startswith("labels/") else 100 * v for k, v in metrics} | {"seconds": content["seconds"]}


def cell(values: Sequence[float], digits: int = 2) -> str:
    """Format the mean, with the standard deviation if there are several values."""
    text = f"{statistics.mean(values):,.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
