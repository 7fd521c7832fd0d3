"""A staged run in processes of its own, which a test may cut."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ddp.runs import CONFIG, FRAGILE, environment


@pytest.fixture
def staged(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "fragile.py").write_text(FRAGILE)

    def run(*args: str, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config", "tiny.yaml", *args],
            cwd=tmp_path,
            env=environment(tmp_path) | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            start_new_session=True,  # so that killpg does not reach the tests
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    return run
