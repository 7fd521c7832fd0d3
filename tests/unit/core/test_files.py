"""Atomic writes: files are complete or absent."""

import os
import subprocess
import sys
import time

import pytest

from zoo.core.files import STALE_SECONDS, atomic_write


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def leave_aside(path, process, age):
    file = path.with_name(f".{path.stem}.{process}{path.suffix}")
    file.write_text("half")
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_a_failing_block_leaves_the_older_file_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as aside:
        print(aside.write_text("half") / 0)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_synced_before_the_rename(tmp_path, monkeypatch):
    path, calls = tmp_path / "a.txt", []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle):
        calls.append(os.readlink(f"/proc/self/fd/{handle}"))
        real_sync(handle)

    def replace(source, target):
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_write(path) as aside:
        aside.write_text("new")
    assert calls == [str(aside), "replace", str(tmp_path)]
    assert path.read_text() == "new"


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(22, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(tmp_path / "a.txt") as aside:
        aside.write_text("new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    path, dead, old = tmp_path / "a[1].txt", dead_process(), STALE_SECONDS + 10
    stale = leave_aside(path, dead, old)
    kept = [
        leave_aside(path, dead_process(), 0),  # may be of another machine
        leave_aside(path, os.getppid(), old),  # lives
        leave_aside(tmp_path / "b.txt", dead, old),
        leave_aside(tmp_path / "a[1].csv", dead, old),
    ]
    with atomic_write(path) as aside:
        aside.write_text("new")
    assert not stale.exists()
    assert set(tmp_path.iterdir()) == {path, *kept}
