"""Files that are whole or not there."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STALE_SECONDS = 60  # a younger file may be of a machine that shares the folder, where its process lives


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path aside to write to; it takes the final name when the block has ended well and all is on the disk."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    remove_stale(path)
    try:
        yield aside
        to_disk(aside)  # or a power cut could leave the final name on an empty file
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system can do this for a folder, and the file is whole either way
        to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove what killed processes have left aside of this path."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}")
    with suppress(OSError):  # others may remove them at the same time
        for file in path.parent.iterdir():
            match = name.fullmatch(file.name)
            if match and not is_alive(int(match[1])) and time.time() - file.stat().st_mtime > STALE_SECONDS:
                file.unlink()


def is_alive(process: int) -> bool:
    """Whether this machine runs a process of that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives, as another user's
        return True
    return True
