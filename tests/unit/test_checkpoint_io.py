"""Checkpoints that a kill or a full disk cannot damage."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

import zoo.checkpoint
from zoo.checkpoint import WholeCheckpoints, read_checkpoint
from zoo.cli import explain

OLD = {"zoo": {"config": ""}, "state_dict": {"weight": torch.arange(4.0)}}

KILLED = """
import os, signal, sys, torch
from zoo.checkpoint import WatchedFile, WholeCheckpoints

written, write = 0, WatchedFile.write

def write_half(self, data):
    global written
    written += len(data)
    if written > 200_000:
        write(self, bytes(data)[: len(data) // 2])
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, data)

WatchedFile.write = write_half
WholeCheckpoints().save_checkpoint({"zoo": {}, "state_dict": {"weight": torch.ones(100_000)}}, sys.argv[1])
"""

LIMITED = """
import os, resource, signal, sys, torch
from zoo.checkpoint import WholeCheckpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for size in map(int, sys.argv[2:]):
    try:
        WholeCheckpoints().save_checkpoint({"zoo": {}, "state_dict": {"weight": torch.ones(size)}}, sys.argv[1])
    except OSError as error:
        print(error.errno, error.filename)
"""


@pytest.fixture
def older(tmp_path):
    path = tmp_path / "checkpoints" / "last.ckpt"
    WholeCheckpoints().save_checkpoint(OLD, str(path))
    return path


def run_child(code, *args):
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], env=environment, capture_output=True, text=True, check=False
    )


def is_old(path):
    return torch.equal(read_checkpoint(path)["state_dict"]["weight"], OLD["state_dict"]["weight"])


def test_a_checkpoint_is_what_lightning_would_have_written(older, tmp_path):
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]
    loaded = TorchCheckpointIO().load_checkpoint(older, weights_only=True)
    assert loaded["zoo"] == OLD["zoo"]


def test_a_kill_in_the_middle_of_writing_leaves_the_older_checkpoint(older):
    assert run_child(KILLED, older).returncode == -signal.SIGKILL
    assert is_old(older)
    (aside,) = set(older.parent.iterdir()) - {older}
    assert aside.stat().st_size > 100_000
    WholeCheckpoints().save_checkpoint(OLD, older)
    assert is_old(older)


def test_a_write_that_fails_names_the_checkpoint_and_leaves_nothing(older):
    sizes = (100_000, 24_600, 24_900)  # in the middle, and near the end, where buffers are emptied
    done = run_child(LIMITED, older, *sizes)
    assert done.stdout.splitlines() == [f"{errno.EFBIG} {older}"] * len(sizes), done.stderr
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_disk_is_one_line_that_names_the_checkpoint(older, monkeypatch, size):
    @contextmanager
    def on_a_full_disk(path):
        yield Path("/dev/full")

    monkeypatch.setattr(zoo.checkpoint, "written_whole", on_a_full_disk)
    with pytest.raises(OSError) as caught:
        WholeCheckpoints().save_checkpoint({"weight": torch.ones(size)}, older)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(older)
    assert explain(caught.value) == f"the disk is full ({older}): free some space and run again"
    assert is_old(older)


def test_other_errors_stay_what_they_are(older):
    with pytest.raises((AttributeError, TypeError)):
        WholeCheckpoints().save_checkpoint({"weight": (i for i in range(3))}, older)
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]


def test_urls_and_options_are_left_to_lightning(tmp_path):
    url = f"file://{tmp_path}/deep/a.ckpt"
    WholeCheckpoints().save_checkpoint(OLD, url)
    assert is_old(tmp_path / "deep" / "a.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        WholeCheckpoints().save_checkpoint(OLD, tmp_path / "b.ckpt", storage_options={})
