"""Output of commands: to the terminal, or to files that appear once they are complete."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from zoo.commands.verbs import discard_output
from zoo.core.errors import UserError, first_line
from zoo.core.files import atomic_write

FILE_WIDTH = 200  # columns if the output is not a terminal
STDOUT = {"-", "/dev/stdout"}


def plain_console() -> Console:
    """A console that prints names verbatim, without interpreting markup or emoji codes."""
    width = None if sys.stdout is not None and sys.stdout.isatty() else FILE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def print_summary(**values: str) -> None:
    for name, value in values.items():
        plain_console().print(f"{name}: {value}")


def check_not_overwritten(out: str, **inputs: str) -> None:
    """Refuse an output file that is one of the inputs, given by option, under any name."""
    target = file_identity(1 if out in STDOUT else out)
    for name, source in inputs.items():
        if target is not None and target == file_identity(0 if source == "-" else source):
            raise UserError(f"`out={out}` is the same file as `{name}={source}`: choose another one")


def file_identity(place: str | int) -> tuple[int, int] | None:
    """Device and inode of a regular file, by path or descriptor; None for anything else."""
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def json_line(value: Any, encoding: str | None = None) -> str:
    """Format a line of JSON that is valid (RFC 8259) and can be written in `encoding`.

    Numbers that JSON does not have, such as NaN, become null, and types that it does not have strings.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        value = without_nan(value)
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    try:
        line.encode(encoding or "utf8")
    except UnicodeEncodeError:  # a lone surrogate, or a character that a terminal does not have
        line = json.dumps(value, allow_nan=False, default=str)
    return line + "\n"


def without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def opened_output(target: str) -> Iterator[TextIO]:
    """Open standard output (`-`), a device or pipe, or a file that is replaced once it is complete."""
    if target in STDOUT:
        if sys.stdout is None:
            raise UserError("standard output is closed: give a file with `out`")
        with write_errors("standard output"):
            try:
                yield sys.stdout
                sys.stdout.flush()
            except OSError:
                discard_output()
                raise
        return
    with write_errors(target):
        path = Path(target).resolve()
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"cannot write {target}: {'it is' if path.is_dir() else 'its parent is not'} a folder")
        is_special = os.path.exists(target) and not os.path.isfile(target)  # `resolve` loses /dev/fd/63
        with (
            nullcontext(Path(target)) if is_special else atomic_write(path) as place,
            place.open("w", encoding="utf8") as file,
        ):
            yield file


@contextmanager
def write_errors(target: str) -> Iterator[None]:
    """Turn errors of writing into a one-line `UserError`, except for a reader that has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError) as error:  # the latter is how pathlib reports a loop of links
        if isinstance(error, RuntimeError) and "loop" not in str(error):
            raise
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(f"cannot write {target}: {reason or first_line(error)}") from error


def split_names(option: str, value: str) -> list[str]:
    """Names in a value such as `train,val`."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise UserError(f"`{option}` is empty: give names separated by commas")
    return names
