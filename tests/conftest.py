"""Fixtures that several test files share."""

from __future__ import annotations

import pytest


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the corpora nor the cache of the person who runs the tests, and one process."""
    for name in ("ZOO_DATA", "ZOO_CACHE", "HF_HUB_OFFLINE", "RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
