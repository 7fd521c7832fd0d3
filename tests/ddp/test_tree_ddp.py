"""Label trees on two processes."""

from __future__ import annotations

import pytest
import torch

from tests.ddp.runs import DYNAMIC_TREE, weights

pytestmark = pytest.mark.ddp


def test_two_processes_have_the_tree_of_one(fit, folder):
    (folder / "tiny.yaml").write_text(DYNAMIC_TREE)
    trees = []
    for processes in (1, 2):
        name = f"on-{processes}"
        short = ["--stages.main.epochs=1", "--stages.main.average_from=null", "--final_test=false"]
        fit(f"--name={name}", *short, processes=processes)
        trees.append(weights(folder, name)["head.trees.0.cluster_of"])
    assert torch.equal(*trees)
    assert not torch.equal(trees[0], trees[0].sort().values)  # another than the one to begin with
