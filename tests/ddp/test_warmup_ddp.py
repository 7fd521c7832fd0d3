"""`WarmupDecay` on two processes: an epoch has half the steps, and both have the same rates."""

from __future__ import annotations

import json

import pytest

from tests.ddp.runs import START

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8}}}}
  head: Linear
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
  lr_scheduler: {{class_path: WarmupDecay, init_args: {{warmup: 0.5}}}}
stages:
  - {{name: head, epochs: 2, trainable: ["head.*"]}}
  - {{name: all, epochs: 1}}
"""
# Writes, for each process, the stage and the rate of each batch.
NOTING = """
import json, os
from pathlib import Path
from pytorch_lightning import Callback

class Rates(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        (group,) = trainer.optimizers[0].param_groups
        with Path("rates-" + os.environ.get("LOCAL_RANK", "0")).open("a") as file:
            file.write(json.dumps([pl_module.stage.name, group["lr"]]) + "\\n")
"""


def test_the_rates_of_both_processes_go_with_the_steps_that_they_make_together(fit, folder):
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "noting.py").write_text(NOTING)
    fit("--trainer.callbacks=noting.Rates", "--final_test=false", processes=2)
    first, second = ([json.loads(line) for line in (folder / f"rates-{k}").read_text().splitlines()] for k in (0, 1))
    assert first == second
    # 109 documents: 7 steps an epoch, 14 on one process
    head = [k / 7 for k in range(1, 8)] + [k / 7 for k in range(7, 0, -1)]
    everything = [k / 4 for k in range(1, 5)] + [k / 3 for k in range(3, 0, -1)]
    assert [stage for stage, _ in first] == ["head"] * 14 + ["all"] * 7
    assert [rate for _, rate in first] == pytest.approx([0.01 * factor for factor in head + everything])
