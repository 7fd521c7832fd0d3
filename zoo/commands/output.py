"""Output of commands: to the terminal, or to files that appear once they are complete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from rich.console import Console

from zoo.core.errors import UserError
from zoo.core.files import atomic_write

FILE_WIDTH = 200  # columns if the output is not a terminal


def plain_console() -> Console:
    """A console that prints names verbatim, without interpreting markup or emoji codes."""
    width = None if sys.stdout.isatty() else FILE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def print_summary(**values: str) -> None:
    for name, value in values.items():
        plain_console().print(f"{name}: {value}")


@contextmanager
def opened_output(target: str) -> Iterator[IO[str]]:
    """Open standard output (`-`), a device or pipe, or a file that is replaced once it is complete."""
    if target == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(target).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"cannot write {target}: {'it is' if path.is_dir() else 'its parent is not'} a folder")
    is_special = path.exists() and not path.is_file()
    try:
        with (
            nullcontext(path) if is_special else atomic_write(path) as place,
            place.open("w", encoding="utf8") as file,
        ):
            yield file
    except PermissionError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
