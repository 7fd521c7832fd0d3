"""Staged runs through the real command line."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.stages.recording import (
    CONFIG,
    Recorder,
)
from zoo.commands.main import main


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _recorded(monkeypatch, cache):
    monkeypatch.setenv("ZOO_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(Recorder, "batches", [])
    monkeypatch.setattr(Recorder, "weights", [])
    monkeypatch.setattr(Recorder, "validated", [])
    monkeypatch.setattr(Recorder, "visits", [])
    monkeypatch.setattr(Recorder, "kill_at", None)
    monkeypatch.setattr(Recorder, "stop_at", None)
    monkeypatch.setattr(Recorder, "stop_by", (signal.SIGTERM,))
    monkeypatch.setattr(Recorder, "spoil_at", None)


@pytest.fixture
def config(tmp_path):
    """Write an experiment; `stages` and `head` replace its own."""

    def write(stages: str = "", head: Any = None) -> Path:
        here = Recorder.__module__
        content = yaml.safe_load(CONFIG.replace("RECORDER", f"{here}.Recorder").replace("HEAD", f"{here}.Odd"))
        if head:
            content["model"]["head"] = head
        if stages:
            content["stages"] = yaml.safe_load(stages)
        path = tmp_path / "staged.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def go(tmp_path):
    """Train; returns the only run folder of that name."""

    def run(config: Path | None, *args: str, name: str = "staged") -> Path:
        files = ["--config", str(config)] if config else []
        main(["fit", *files, f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", f"--name={name}", *args])
        (folder,) = (tmp_path / "runs" / name).iterdir()
        return folder

    return run


@pytest.fixture
def refused(fails, tmp_path):
    """The one line, with all of `names`, that a `fit` ends in."""
    where = [f"--runs={tmp_path / 'refused'}", "--wandb.mode=disabled"]
    return lambda config, *args, names=(): fails("fit", f"--config={config}", *where, *args, names=names)
