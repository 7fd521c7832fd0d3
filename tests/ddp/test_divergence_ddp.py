"""A loss that is not finite on one of two processes ends both, and neither waits for the other."""

from __future__ import annotations

import pytest

from tests.ddp.runs import only_run
from zoo.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.ddp
SPOILING = """
import torch
from pytorch_lightning import Callback

class Spoil(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_rank == 1 and trainer.global_step == 3:
            pl_module.all_finite = torch.tensor(False)
"""


def test_both_processes_stop(fit, folder):
    (folder / "spoiling.py").write_text(SPOILING)
    error = fit("--trainer.callbacks=spoiling.Spoil", "--last.every_n_train_steps=2", processes=2, code=2)
    assert "finite" in error
    assert "Traceback" not in error
    last = only_run(folder, "tiny") / "checkpoints" / "last.ckpt"
    assert read_checkpoint(last)["global_step"] == 2
    assert str(last.relative_to(folder)) in error
