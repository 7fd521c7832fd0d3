"""Document vectors on two processes: killed while they are computed, continued, and equal to those of one process."""

from __future__ import annotations

import signal

import pytest
import torch

from datamodules.synthetic import SampleCorpus
from tests.ddp.runs import START, weights
from tests.support.encoders import save_bert

pytestmark = pytest.mark.ddp
CONFIG = f"""{START}
model:
  backbone: {{class_path: Transformer, init_args: {{name: bert, pooling: mean}}}}
  head: {{class_path: dense.Svm, init_args: {{features: dense}}}}
stages:
  - {{name: fit, on_enter: [fit]}}
"""
DENSE = """
import os, signal
from datamodules.prepare import dense_vectors
from heads import OneVsRestSvm

dense_vectors.BLOCK = 16
write = dense_vectors.VectorCache._block

def fragile(self, number):
    if str(number) == os.environ.get("KILL_BLOCK"):
        os.killpg(0, signal.SIGKILL)
    return write(self, number)

dense_vectors.VectorCache._block = fragile

class Svm(OneVsRestSvm):
    pass
"""


@pytest.mark.kill
def test_vectors_of_two_processes_survive_a_kill(fit, folder):
    texts = [document.text for document in SampleCorpus(155, 20, 30).documents("train")]
    save_bert(folder / "bert", texts)
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "dense.py").write_text(DENSE)
    data = ["--data.max_length=32", f"--data.cache_dir={folder / 'two'}"]
    fit("--name=killed", *data, processes=2, code=-signal.SIGKILL, KILL_BLOCK="4")
    (blocks,) = (folder / "two" / "vectors").glob("*.blocks")
    assert {"0.npz", "2.npz"} <= {path.name for path in blocks.iterdir()}
    fit("--name=two", *data, processes=2)
    fit("--name=one", "--data.max_length=32", f"--data.cache_dir={folder / 'one'}")
    stored = [next((folder / name / "vectors").glob("*/vectors.npy")) for name in ("one", "two")]
    assert stored[0].parent.name == stored[1].parent.name
    assert stored[0].read_bytes() == stored[1].read_bytes()
    one, two = (weights(folder, name, "best.ckpt")["head._extra_state"] for name in ("one", "two"))
    assert all(torch.equal(value, two[name]) for name, value in one.items() if isinstance(value, torch.Tensor))
