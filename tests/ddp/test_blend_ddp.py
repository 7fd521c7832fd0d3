"""Blend on two processes: the first one fits the trees, and both have those of one process."""

from __future__ import annotations

import pytest
import torch

from tests.ddp.runs import START, only_run, weights

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: Words
  head:
    class_path: Blend
    init_args:
      members: {{svm: OneVsRestSvm, other: {{class_path: OneVsRestSvm, init_args: {{lead: 5}}}}}}
      ranker: {{trees: 10, least: 10}}
      scores: out_of_fold
stages:
  - {{name: members, on_enter: [svm.fit, other.fit]}}
  - {{name: ranker, on_enter: [fit_ranker]}}
"""


def test_two_processes_fit_what_one_fits(fit, folder):
    (folder / "tiny.yaml").write_text(CONFIG)
    for processes in (1, 2):
        fit(f"--name=on-{processes}", "--data.num_documents=305", processes=processes)
    one, two = (weights(folder, f"on-{processes}") for processes in (1, 2))
    name = "head.trees._extra_state"
    assert all(torch.equal(one[name][part], two[name][part]) for part in one[name])
    metrics = [(only_run(folder, f"on-{processes}") / "metrics.json").read_text() for processes in (1, 2)]
    assert all('"svm/P@1"' in text for text in metrics)
