"""Heads in heads on two processes: their transitions find what one process finds."""

from __future__ import annotations

import pytest
import torch

from tests.ddp.runs import START, only_run, weights

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8}}}}
  head:
    class_path: Rerank
    init_args:
      allowed_loss: 0.1
      ranknet: {{held_back: 0}} # the last epoch, so that there is something to compare
      inner: {{class_path: Wide, init_args: {{inner: Linear, engine: OneVsRestSvm}}}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.02}}}}
stages:
  - {{name: main, epochs: 2}}
  - {{name: wide, on_enter: [inner.engine.fit, inner.fit_weights]}}
  - {{name: rerank, on_enter: [train_ranknet, choose_exponent]}}
"""


def test_two_processes_weigh_train_and_choose_as_one_does(fit, folder):
    (folder / "tiny.yaml").write_text(CONFIG)
    data = ("--data.num_documents=305", "--data.eval_batch_size=12")
    fit("--name=two", *data, "--final_test=false", processes=2)
    start = only_run(folder, "two") / "checkpoints" / "main.ckpt"
    for processes in (1, 2):
        given = (*data, "--from_stage=wide", f"--ckpt={start}", "--final_test=false")
        fit(f"--name=from-{processes}", *given, processes=processes)
    one, two, before = (weights(folder, *of) for of in (["from-1"], ["from-2"], ["two", "main.ckpt"]))
    # Sums in another order change the weights in their last digits, and so the choice by a step of the grid.
    assert float(one["head.exponent"]) == pytest.approx(float(two["head.exponent"]), abs=0.051)
    assert bool(one["head.trained"])
    for name in ("head.inner.weights", "head.net.first.0.weight", "head.net.second.0.weight"):
        assert torch.allclose(one[name], two[name], rtol=0, atol=1e-4), name
    assert not torch.equal(one["head.inner.weights"], before["head.inner.weights"])
    assert one["head.net.second.0.weight"].any()
