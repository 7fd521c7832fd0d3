"""Checkpoints that neither a kill nor a full disk can damage."""

import errno
import multiprocessing
import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

import zoo.training.checkpoint
from tests.support.errors import assert_message, raises
from zoo.commands.lightning import explain
from zoo.training.checkpoint import WatchedFile, read_checkpoint
from zoo.training.checkpoint_io import AtomicCheckpointIO

OLD = {"zoo": {"config": ""}, "state_dict": {"weight": torch.arange(4.0)}}


def in_child(work, *args):
    """Exit code of a forked process that runs `work`."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    process.start()
    process.join(60)
    return process.exitcode


def save(path, size):
    AtomicCheckpointIO().save_checkpoint({"zoo": {}, "state_dict": {"weight": torch.ones(size)}}, path)


def save_until_killed(path):
    written, write = 0, WatchedFile.write

    def write_half(self, data):
        nonlocal written
        written += len(data)
        if written > 200_000:
            write(self, bytes(data)[: len(data) // 2])
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)

    WatchedFile.write = write_half
    save(path, 100_000)


def save_to_small_files(path, sizes, errors):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for size in sizes:
        try:
            save(path, size)
        except OSError as error:
            errors.send((error.errno, error.filename))


@pytest.fixture
def older(tmp_path):
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, str(path))
    return path


def is_old(path):
    return torch.equal(read_checkpoint(path)["state_dict"]["weight"], OLD["state_dict"]["weight"])


def test_checkpoints_equal_those_of_lightning(older):
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]
    loaded = TorchCheckpointIO().load_checkpoint(older, weights_only=True)
    assert loaded["zoo"] == OLD["zoo"]


def test_a_kill_while_writing_keeps_the_older_checkpoint(older):
    assert in_child(save_until_killed, older) == -signal.SIGKILL
    assert is_old(older)
    (aside,) = set(older.parent.iterdir()) - {older}
    assert aside.stat().st_size > 100_000
    AtomicCheckpointIO().save_checkpoint(OLD, older)
    assert is_old(older)


def test_a_failed_write_names_the_checkpoint_and_leaves_no_files(older):
    sizes = (100_000, 24_600, 24_900)  # in the middle, and near the end, where buffers are flushed
    errors, sent = multiprocessing.Pipe(duplex=False)
    assert in_child(save_to_small_files, older, sizes, sent) == 0
    assert [errors.recv() for _ in sizes] == [(errno.EFBIG, str(older))] * len(sizes)
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_disk_is_reported_in_one_line(older, monkeypatch, size):
    @contextmanager
    def on_a_full_disk(path):
        yield Path("/dev/full")

    monkeypatch.setattr(zoo.training.checkpoint, "atomic_write", on_a_full_disk)
    with pytest.raises(OSError) as caught:
        AtomicCheckpointIO().save_checkpoint({"weight": torch.ones(size)}, older)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(older)
    assert_message(explain(caught.value), older)
    assert is_old(older)


def test_other_errors_are_raised_unchanged(older):
    with pytest.raises((AttributeError, TypeError)):
        AtomicCheckpointIO().save_checkpoint({"weight": (i for i in range(3))}, older)
    assert is_old(older)
    assert list(older.parent.iterdir()) == [older]


def test_urls_and_options_are_passed_to_lightning(tmp_path):
    url = f"file://{tmp_path}/deep/a.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, url)
    assert is_old(tmp_path / "deep" / "a.ckpt")
    with raises(TypeError, "storage_options"):
        AtomicCheckpointIO().save_checkpoint(OLD, tmp_path / "b.ckpt", storage_options={})
