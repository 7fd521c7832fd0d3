"""Methods with a mechanism of their own, killed inside it: the resumed run is bit for bit the uninterrupted one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ddp.runs import DYNAMIC_TREE, LSFA, START, assert_kills_change_nothing

pytestmark = [pytest.mark.ddp, pytest.mark.kill]
PARTS = Path.cwd() / "experiments" / "parts"
MID_EPOCH = ("--last.every_n_train_steps=2",)


def test_lsfa_in_its_bank_and_its_autoencoder(fit, folder):
    (folder / "tiny.yaml").write_text(LSFA)
    short = [f"--stages.representation.{setting}" for setting in ("epochs=2", "average_from=1", "average_every=3")]
    places = ["train_pvae", "adjust:3"]
    whole = assert_kills_change_nothing(fit, folder, places, *short, processes=2, resuming=MID_EPOCH)
    stages = {"representation.ckpt", "bank.ckpt", "pvae.ckpt"}
    assert stages <= {path.name for path in (whole / "checkpoints").iterdir()}


def test_a_tree_of_sparse_levels_while_it_is_built_and_trained(fit, folder):
    (folder / "tiny.yaml").write_text(DYNAMIC_TREE)
    assert_kills_change_nothing(fit, folder, ["build_tree", "main:9"], processes=2, resuming=MID_EPOCH)


def test_a_tree_level_by_level_between_its_levels(fit, folder):
    content = f"""{START}
model:
  backbone:
    class_path: PerLevel
    init_args: {{levels: 2, encoder: {{class_path: BiLSTM, init_args: {{embed_dim: 8, hidden: 8, dropout: 0.3}}}}}}
  head:
    class_path: fragile.FragileTree
    init_args: {{hidden: [8], tree: {{clusters: 8}}, beam: 3, layer_per_level: true}}
  optimizer: {{class_path: Adam, init_args: {{lr: 0.01}}}}
stages: {PARTS}/stages_levels.yaml
"""
    (folder / "tiny.yaml").write_text(content)
    short = [
        f"--stages.{stage}.{setting}" for stage in ("clusters", "labels") for setting in ("epochs=2", "average_from=1")
    ]
    places = ["start_next_level", "labels:17"]
    assert_kills_change_nothing(fit, folder, places, *short, resuming=MID_EPOCH)


def test_experts_on_a_transformer_in_their_second_stage(fit, folder):
    content = f"""{START}
model:
  backbone:
    class_path: Transformer
    init_args: {{name: xlnet, pretrained: false, config: {{d_model: 16, n_layer: 2, n_head: 2, d_inner: 16}}}}
  head: fragile.FragileExperts
  optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-3}}}}
stages: {PARTS}/stages_mexml.yaml
"""
    (folder / "tiny.yaml").write_text(content)
    short = ["--stages.experts.epochs=1", "--stages.diverse.epochs=2"]
    assert_kills_change_nothing(fit, folder, ["diverse:3"], *short, processes=2, resuming=MID_EPOCH)
