"""Two gloo processes, started by Lightning's own launcher through the real command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 155, num_labels: 20, words_per_document: 30, batch_size: 16, eval_batch_size: 8}
trainer: {accelerator: cpu, max_epochs: 2, num_sanity_val_steps: 0, enable_progress_bar: false}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8}}
  head: Linear
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
wandb: {mode: disabled}
"""


@pytest.fixture
def zoo(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    environment = os.environ | {
        "PYTHONPATH": str(Path.cwd()),
        "ZOO_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    environment.pop("ZOO_DATA", None)

    def run(*args: str) -> str:
        command = [sys.executable, "-m", "zoo", *args]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def table(output: str) -> list[str]:
    return [line for line in output.splitlines() if "│" in line or "F1" in line]


def test_fit_on_two_processes_and_equal_metrics_on_one_and_two(zoo, tmp_path):
    two = ("--trainer.devices=2", "--trainer.strategy=ddp")
    trained = table(zoo("fit", "--config", "tiny.yaml", *two))
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()  # one folder for both processes
    summary = json.loads((folder / "metrics.json").read_text())
    assert summary["metrics"]["P@1"] > 0
    found = pq.read_table(folder / "predictions.parquet").to_pylist()  # of both, each document once and in order
    assert [row["row"] for row in found] == list(range(len(found)))
    counted = [row["labels"][0] in row["truth"] for row in found if row["truth"]]
    assert sum(counted) / len(counted) == pytest.approx(summary["metrics"]["P@1"], abs=1e-6)
    best = str(folder / "checkpoints" / "best.ckpt")
    one_process = table(zoo("test", "--ckpt", best, "--trainer.accelerator=cpu", "--trainer.devices=1"))
    two_processes = table(zoo("test", "--ckpt", best, "--trainer.accelerator=cpu", *two))
    assert trained[-12:] == one_process[-12:] == two_processes[-12:]
    assert len(one_process) >= 12
