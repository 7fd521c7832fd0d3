"""Fixtures that several test files share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from zoo.core.console import terminal_output


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    """Messages are shown, as at the command line."""
    with terminal_output():
        yield


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the corpora nor the cache of the person who runs the tests, and one process."""
    for name in ("ZOO_DATA", "ZOO_CACHE", "HF_HUB_OFFLINE", "RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of prepared corpora, one for all tests and all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "shared-cache"


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_works():
    """Tests send SIGINT, which a shell makes its background jobs ignore, and they their children."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
