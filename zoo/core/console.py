"""Log messages and progress bars, on the first process only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import rich.progress
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from zoo.core.errors import printable

LOGGER = logging.getLogger("zoo")


def is_first_process() -> bool:
    """Whether this is rank 0, or not a distributed run."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "NODE_RANK", "SLURM_PROCID", "LOCAL_RANK"))


def note(line: str, level: int = logging.INFO, rendered: RenderableType | None = None) -> None:
    """Log a line; the terminal shows `rendered`, such as a table, in place of it."""
    if is_first_process():
        LOGGER.log(level, "%s", line, extra={"rendered": rendered})


def warn(line: str) -> None:
    note(line, logging.WARNING)


def warn_panel(title: str, text: str) -> None:
    note(f"{title}: {text}", logging.WARNING, Panel(escape(text), title=title, style="bold yellow"))


class TerminalHandler(logging.Handler):
    """Prints log records to stderr, each after a dimmed dot."""

    def emit(self, record: logging.LogRecord) -> None:
        console = Console(stderr=True)  # not cached: stderr may have been replaced
        if rendered := getattr(record, "rendered", None):
            console.print(rendered)
        else:
            console.print(f"[dim]·[/] {escape(printable(record.getMessage()))}", highlight=False, soft_wrap=True)


@contextmanager
def terminal_output() -> Iterator[None]:
    """Show messages and progress bars in the terminal, as the command line does; nested calls have no effect."""
    if any(isinstance(handler, TerminalHandler) for handler in LOGGER.handlers):
        yield
        return
    handler, level, propagate = TerminalHandler(), LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(level or logging.INFO)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate


def is_shown() -> bool:
    """Whether progress bars and results are shown: at the command line, and where a program logs at level INFO."""
    return is_first_process() and LOGGER.isEnabledFor(logging.INFO)


def print_result(result: RenderableType) -> None:
    """Print a result of a run, such as a table, to standard output."""
    if is_shown():
        Console().print(result, highlight=False)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float | None], Callable[[float], None]]]:
    """Show a progress bar: `with progress_bar("Reading") as start: advance = start(total)`, then `advance(amount)`."""
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console, hidden = Console(stderr=True), not is_shown()
    with Progress(TextColumn("{task.description}"), *columns, console=console, disable=hidden) as progress:

        def start(total: float | None) -> Callable[[float], None]:
            task = progress.add_task(title, total=total)
            return lambda amount: progress.advance(task, amount)

        yield start


def open_with_bar(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading bytes, with a progress bar."""
    console, hidden = Console(stderr=True), not is_shown()
    return rich.progress.open(path, "rb", description=f"Reading {path.name}", console=console, disable=hidden)
