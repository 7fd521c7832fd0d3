"""LSFA's bank and prototypes on two processes."""

from __future__ import annotations

import pytest
import torch

from tests.ddp.runs import LSFA

pytestmark = pytest.mark.ddp
# Keeps what each process has after its transitions.
NOTING = """
import os
import torch
from fragile import FragileAugmentor

class Noting(FragileAugmentor):
    def refresh_prototypes(self, ctx):
        super().refresh_prototypes(ctx)
        self.keep("refreshed", prototypes=self.prototypes, support=self.support)

    def collect_bank(self, ctx):
        super().collect_bank(ctx)
        bank = self.bank
        kept = {name: getattr(bank, name) for name in ("labels", "documents", "support", "features")}
        self.keep("bank", prototypes=self.prototypes, **kept)

    def keep(self, name, **values):
        folder = os.environ["NOTES"]
        os.makedirs(folder, exist_ok=True)
        torch.save(values, f"{folder}/{name}-{os.environ.get('LOCAL_RANK', '0')}.pt")
"""
FIRST = """
stages:
  - {name: representation, epochs: 1, on_enter: [refresh_prototypes, train_pvae, start_adjustment]}
"""


def test_two_processes_have_the_whole_bank_and_prototypes_of_one(fit, folder):
    (folder / "tiny.yaml").write_text(LSFA)
    (folder / "noting.py").write_text(NOTING)
    (folder / "first.yaml").write_text(FIRST)
    settings = {"head_count": 15, "psc_start": 0, "feat_dim": 12, "pvae.epochs": 1}
    head = ["--config=first.yaml", "--model.head=noting.Noting"]
    head += [f"--model.head.{name}={value}" for name, value in settings.items()]
    head += ["--trainer.limit_train_batches=1", "--final_test=false"]
    for processes in (1, 2):
        fit(f"--name=on-{processes}", *head, processes=processes, NOTES=str(folder / str(processes)))
    for name in ("refreshed", "bank"):
        alone = torch.load(folder / "1" / f"{name}-0.pt")
        assert all(alone["support"] > 0)
        for process in (0, 1):
            together = torch.load(folder / "2" / f"{name}-{process}.pt")
            assert alone.keys() == together.keys()
            for key, value in alone.items():
                assert torch.allclose(value, together[key], rtol=0, atol=1e-6), (name, key)
    assert len(alone["features"]) == alone["support"].sum()
    assert (alone["features"] != 0).any(1).all()
