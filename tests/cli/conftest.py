"""The real command line on a tiny corpus."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from datamodules.synthetic import SampleCorpus
from tests.support.encoders import save_bert
from zoo.commands.main import main

TINY = """
data:
  class_path: Sample
  init_args: {num_documents: 150, num_labels: 20, words_per_document: 40, batch_size: 16}
trainer:
  accelerator: cpu
  max_epochs: 2
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8}}
  head: Linear
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
"""


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch, tmp_path):
    for name in ("ZOO_DATA", "WANDB_API_KEY", "WANDB_MODE", "ZOO_RUN_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved_bert(tmp_path_factory) -> Path:
    """A tiny random BERT with its tokenizer; nobody may change it."""
    texts = [document.text for document in SampleCorpus(num_documents=50, num_labels=10).documents("train")]
    return save_bert(tmp_path_factory.mktemp("encoders"), texts)


@pytest.fixture
def bert(saved_bert, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved_bert, tmp_path / "bert"))


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def fit(tiny, tmp_path):
    """Train through the command line; returns the run folder."""

    def run(*args: str, config: Path = tiny, wandb: str = "disabled") -> Path:
        runs = tmp_path / "runs"
        before = set(runs.glob("*/*"))
        main(["fit", "--config", str(config), "--runs", str(runs), f"--wandb.mode={wandb}", *args])
        (new,) = set(runs.glob("*/*")) - before
        return new

    return run


@pytest.fixture
def fails(capsys):
    """Run a command that must end in exit code 2 and one line with all of `names`; returns the line.

    `names` are options, files and values: tests do not depend on the wording.
    """

    def run(*args: str, names: Sequence[object] = ()) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        error = capsys.readouterr().err
        lines = [line.removeprefix("error: ") for line in error.splitlines() if line.startswith("error: ")]
        assert stop.value.code == 2
        assert len(lines) == 1
        assert "Traceback" not in error
        assert [name for name in names if str(name) not in lines[0]] == [], lines[0]
        return lines[0]

    return run


@pytest.fixture
def read_metrics():
    return lambda folder: json.loads((folder / "metrics.json").read_text())
