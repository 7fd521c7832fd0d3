"""What a person at the terminal sees: lines, panels and progress bars of one look, from the first process only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def is_first_process() -> bool:
    """True unless a launcher made this process as another rank."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "NODE_RANK", "SLURM_PROCID", "LOCAL_RANK"))


def note(line: str) -> None:
    """A line for the person at the terminal, from the first process only."""
    if is_first_process():
        Console(stderr=True).print(f"[dim]·[/] {escape(line)}", highlight=False, soft_wrap=True)


def warn_panel(title: str, text: str) -> None:
    if is_first_process():
        Console(stderr=True).print(Panel(escape(text), title=title, style="bold yellow"))


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float | None], Callable[[float], None]]]:
    """`with progress_bar("Reading") as bar: advance = bar(total)`, then `advance(amount)`; written to stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not is_first_process(),
    ) as progress:

        def start(total: float | None) -> Callable[[float], None]:
            task = progress.add_task(title, total=total)
            return lambda amount: progress.advance(task, amount)

        yield start


def open_with_bar(path: Path) -> AbstractContextManager[BinaryIO]:
    """A file for reading bytes, with a bar that fills as they are read."""
    console, hidden = Console(stderr=True), not is_first_process()
    return rich.progress.open(path, "rb", description=f"Reading {path.name}", console=console, disable=hidden)
