"""Atomic writes."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STALE_SECONDS = 60  # a younger file may belong to a process on another machine that shares the folder


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` if the block succeeds."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    remove_stale(path)
    try:
        yield temporary
        to_disk(temporary)  # or a power failure could leave an empty file with the final name
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder; the file is complete in any case
        to_disk(path.parent)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to write to. It is synced and renamed at the end, or removed after an error.

    It replaces what is at `folder`, whose files stay intact for processes that have them open. The caller holds a lock
    on `folder`.
    """
    for left in folder.parent.glob(f".{folder.name}.*"):  # of processes that were killed
        remove(left)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir()
    try:
        yield aside
        for file in aside.iterdir():
            to_disk(file)
        replaced = aside.with_name(f"{aside.name}.old")
        if os.path.lexists(folder):
            folder.rename(replaced)
        aside.rename(folder)
        remove(replaced)
    finally:
        remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove temporary files of killed processes."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}")
    with suppress(OSError):  # another process may remove them at the same time
        for file in path.parent.iterdir():
            match = name.fullmatch(file.name)
            if match and not is_alive(int(match[1])) and time.time() - file.stat().st_mtime > STALE_SECONDS:
                file.unlink()


def is_alive(process: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True
