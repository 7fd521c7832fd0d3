"""Two gloo processes, started by Lightning's own launcher in new interpreters."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tests.ddp.runs import START, only_run

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8}}}}
  head: Linear
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
"""


def test_fit_on_two_processes_and_equal_metrics_on_one_and_two(fit_unforked, start, folder):
    (folder / "tiny.yaml").write_text(CONFIG)
    fit_unforked("--name=two", "--trainer.max_epochs=2", "--data.eval_batch_size=8", processes=2)
    run = only_run(folder, "two")  # one folder for both processes
    trained = json.loads((run / "metrics.json").read_text())["metrics"]
    assert trained["P@1"] > 0
    found = pq.read_table(run / "predictions.parquet").to_pylist()  # of both, each document once and in order
    assert [row["row"] for row in found] == list(range(len(found)))
    counted = [row["labels"][0] in row["truth"] for row in found if row["truth"]]
    assert sum(counted) / len(counted) == pytest.approx(trained["P@1"], abs=1e-6)
    tables = []
    for processes in (1, 2):
        best = run / "checkpoints" / "best.ckpt"
        with start("test", f"--ckpt={best}", "--trainer.accelerator=cpu", processes=processes) as test:
            error = test.communicate()
        assert test.returncode == 0, error
        tables.append([line for line in test.stdout.splitlines() if "│" in line or "F1" in line])
    assert tables[0] == tables[1]
    assert len(tables[0]) >= 12
    for name in ("P@1", "nDCG@5", "PSP@5"):
        assert f"{100 * trained[name]:.2f}" in "\n".join(tables[0])
