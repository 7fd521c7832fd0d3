"""The driver of the attacks: its sandbox notices what it is for, its verdicts hold, and a few cases run whole."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import sandbox
from tests.hostile.__main__ import Verdict, groups, prepare_to_fork, table
from tests.hostile.case import CANARY, EITHER, ERROR, ONE_LINE, SURVIVED, WORKS, Bad, Box
from tests.hostile.sandbox import Kill, Result

PART = ["settings/works", "settings/head-unknown", "checkpoints/file-half", "predict/csv", "downloads/tar-climbs"]


@pytest.fixture(scope="module")
def _imported() -> Iterator[None]:
    """Import what runs need: otherwise each of them would, in its own time and memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(sys, "dont_write_bytecode", True)
        prepare_to_fork()
        yield
    gc.unfreeze()


@pytest.fixture
def box(tmp_path, monkeypatch, _imported) -> Box:
    monkeypatch.setattr(sandbox, "GRACE_SECONDS", 0.2)
    (tmp_path / "box").mkdir()
    return Box(tmp_path / "box", timeout=5)


def result(code: int | None = 0, err: str = "", **more) -> Result:
    return Result(code, more.pop("out", ""), err, 1.0, **more)


def verdict_of(box: Box, found: Result, expect: tuple[str, ...] = EITHER) -> str:
    try:
        return box.judge(found, expect)
    except Bad as bad:
        return bad.verdict


@pytest.mark.parametrize(
    ("found", "expect", "verdict"),
    [
        (result(), WORKS, SURVIVED),
        (result(), ERROR, "silent"),
        (result(2, "error: no\n"), EITHER, ONE_LINE),
        (result(2, "a note\nerror: no\n"), ERROR, ONE_LINE),
        (result(2, "error: no\n"), WORKS, "refused"),
        (result(2, "error: no\nerror: no\n"), ERROR, "untidy"),
        (result(2, "error: no\nmore\n"), ERROR, "untidy"),
        (result(2, "error: \x1b[2J\n"), ERROR, "untidy"),
        (result(2), ERROR, "untidy"),
        (result(1), EITHER, "untidy"),
        (result(1, "Traceback (most recent call last):\nKeyError: 1\n"), EITHER, "traceback"),
        (result(0, "Traceback (most recent call last):\nKeyError: 1\n"), WORKS, "traceback"),
        (result(None), EITHER, "hang"),
        (result(-11), EITHER, "crash"),
        (result(None, too_large=True), EITHER, "crash"),
        (result(left=1), EITHER, "untidy"),
        (result(events=["write /etc/passwd"]), EITHER, "security"),
        (result(events=["start touch"]), EITHER, "security"),
        (result(events=["start uname"]), WORKS, SURVIVED),
    ],
)
def test_a_verdict_follows_from_what_a_run_leaves(box, found, expect, verdict):
    assert verdict_of(box, found, expect) == verdict


def test_a_canary_is_found(box):
    (box.folder / CANARY).touch()
    assert verdict_of(box, result()) == "security"


def test_further_exit_codes_count_if_they_are_given(box):
    assert box.judge(result(143), codes=(143,)) == SURVIVED
    assert box.judge(result(-9), codes=(-9,)) == SURVIVED


def write_outside() -> None:
    Path("../outside").write_text("x")


def connect() -> None:
    outside = socket.socket()
    outside.settimeout(0.1)
    outside.connect_ex(("192.0.2.1", 9))


def leave_a_child() -> None:
    if not os.fork():
        time.sleep(60)
        os._exit(0)


def grow() -> None:
    kept = bytearray(b"x") * (500 << 20)
    time.sleep(60)
    del kept


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (lambda: print("fine"), SURVIVED),
        (lambda: sys.exit("error: no"), "untidy"),  # exit code 1
        (lambda: 1 / 0, "traceback"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash"),
        (lambda: time.sleep(60), "hang"),
        (lambda: os.system("true"), "security"),
        (write_outside, "security"),
        (connect, "security"),
        (leave_a_child, "untidy"),
        (grow, "crash"),
    ],
)
def test_the_sandbox_notices(box, monkeypatch, body, verdict):
    monkeypatch.setattr(sandbox, "MEMORY", 200 << 20)
    assert verdict_of(box, box.run(body, timeout=3 if verdict == "hang" else 50)) == verdict


def test_a_run_has_its_own_streams_and_signals(box):
    done = box.run(lambda: print(sys.stdin.read().upper(), os.environ["A"]), stdin=b"in", env={"A": "b"})
    assert (done.code, done.out) == (0, "IN b\n")
    stopped = box.run(lambda: time.sleep(60), kill=Kill(signal.SIGTERM, lambda: True))
    assert stopped.code == -signal.SIGTERM
    full = box.run(lambda: Path("big").write_bytes(b"x" * 1000), file_size=100)
    assert full.has_traceback
    assert (box.folder / "big").stat().st_size <= 100


def test_every_group_has_cases_and_their_names_are_unique():
    found = groups()
    assert {"settings", "corpora", "checkpoints", "faults", "predict", "verbs", "downloads", "nan", "fuzz"} <= {*found}
    assert all(found.values())


def test_the_table_counts_and_lists_bad_cases():
    text = table([Verdict("a", "x", ONE_LINE, "", 1, ""), Verdict("a", "y", "silent", "why | <b>", 1, "")])
    assert "| a | 1 | - | 1 | 2 |" in text
    assert "- `a/y`: why" in text
    assert "<b>" not in text


def test_a_part_of_the_driver(tmp_path):
    only = [word for part in PART for word in ("--only", part)]
    command = [sys.executable, "-m", "tests.hostile", *only, f"--out={tmp_path / 'table.md'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = (tmp_path / "table.md").read_text().splitlines()
    one_line, survived, cases = map(int, rows[-1].split("|")[2:-1])
    assert min(one_line, survived) >= 2
    assert one_line + survived == cases >= len(PART)
