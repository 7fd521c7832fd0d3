"""Runs in processes of their own, which a test may end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ddp.runs import FRAGILE, STAGED, Fit, environment
from tests.support.forkserver import SERVER, Run, forkserver


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forkserver(tmp_path_factory.mktemp("server")) as path:
        yield path


def devices(processes: int) -> list[str]:
    return [f"--trainer.devices={processes}", *(["--trainer.strategy=ddp"] if processes > 1 else [])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Working directory of the runs."""
    (tmp_path / "tiny.yaml").write_text(STAGED)
    (tmp_path / "fragile.py").write_text(FRAGILE)
    return tmp_path


@pytest.fixture
def start(folder: Path, server: str, shared_cache: Path):
    """Begin a command in a process forked from the server."""

    def run(command: str, *args: str, processes: int = 1, **variables: str) -> Run:
        given = [command, *args, *devices(processes)]
        return Run(given, environment(folder, shared_cache) | {SERVER: server} | variables, folder)

    return run


@pytest.fixture
def fit(start) -> Fit:
    """Train; returns standard error."""

    def run(*args: str, processes: int = 1, code: int = 0, **variables: str) -> str:
        with start("fit", "--config=tiny.yaml", *args, processes=processes, **variables) as process:
            error = process.communicate()
        assert process.returncode == code, error
        return error

    return run


@pytest.fixture
def fit_unforked(folder: Path, shared_cache: Path) -> Fit:
    """The same in new interpreters, the second of which Lightning's launcher starts."""

    def run(*args: str, processes: int = 1, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config=tiny.yaml", *args, *devices(processes)],
            cwd=folder,
            env=environment(folder, shared_cache) | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            start_new_session=True,  # so that killpg does not reach the tests
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    return run
