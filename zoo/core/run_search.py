"""Finished runs in folders and below them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.core.console import note
from zoo.core.errors import UserError, first_line
from zoo.core.run_folder import CHECKPOINTS, CONFIG, RESULTS, RunFolder

MAX_NOTED = 3  # partial runs in a note
NO_RUNS_INSIDE = {CHECKPOINTS, "wandb"}


def read_runs(paths: Sequence[str | Path], partial: bool = False) -> list[RunFolder]:
    """Read the finished runs in these folders and below, without duplicates; notes name those that are skipped.

    Args:
        paths: run folders, or folders that contain them.
        partial: also return partial runs.
    """
    runs: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            what = "is a file: give the run folder that it is in" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}")
        found = list(run_folders(path))
        if not found:
            note(f"{path}: no run folders in it")
        for folder in found:
            resolved = folder.resolve()
            if resolved in runs:
                continue
            try:
                runs[resolved] = RunFolder.read(folder)
            except (OSError, ValueError) as error:
                note(f"skipping {folder}: {first_line(error)}")
    left_out = [] if partial else [run for run in runs.values() if run.partial]
    if left_out:
        shown = [f"{run} ({', '.join(run.partial)})" for run in left_out[:MAX_NOTED]]
        more = f" and {len(left_out) - MAX_NOTED} more" if len(left_out) > MAX_NOTED else ""
        note(f"leaving out partial runs, which are no results: {', '.join(shown)}{more}; add them with `partial`")
    whole = [run for run in runs.values() if run not in left_out]
    if not whole:
        raise UserError(f"no finished run in {', '.join(map(str, paths))}: a run ends by writing {RESULTS}")
    return whole


def run_folders(path: Path) -> Iterator[Path]:
    """Find run folders: this folder and those below it, sorted by name."""
    for folder, inside, files in os.walk(path):
        inside[:] = sorted(set(inside) - NO_RUNS_INSIDE)
        if CONFIG in files or RESULTS in files:
            yield Path(folder)
