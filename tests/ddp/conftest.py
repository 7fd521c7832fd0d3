"""A staged run in processes of its own, which a test may cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddp.runs import CONFIG, FRAGILE


@pytest.fixture
def staged(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "fragile.py").write_text(FRAGILE)
    environment = {name: value for name, value in os.environ.items() if name not in ("ZOO_DATA", "ZOO_RUN_FOLDER")}
    environment |= {
        "PYTHONPATH": f"{Path.cwd()}:{tmp_path}",
        "ZOO_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*args: str, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "zoo", "fit", "--config", "tiny.yaml", *args],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            start_new_session=True,  # so that killpg does not reach the tests
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    return run
