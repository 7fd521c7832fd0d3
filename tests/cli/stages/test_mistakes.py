"""Stages that cannot work are refused before anything is trained; what a run leaves behind belongs to its end."""

from __future__ import annotations

import pytest
import torch
import yaml

from heads import Linear
from tests.support.output import line_with
from zoo.training.checkpoint import read_checkpoint

STAGES = """
stages:
  - {name: head, epochs: 2, trainable: ["backbone.*", head.project.*, head.head, head.scale], documents: head_documents}
  - {name: transfer, on_enter: [transfer]}
  - {name: finetune, epochs: 1, documents: tail_documents, lr: 1.0e-3}
"""


@pytest.fixture
def httn(tiny):
    content = yaml.safe_load(tiny.read_text()) | yaml.safe_load(STAGES)
    content["model"]["head"] = {"class_path": "PrototypeTransfer", "init_args": {"hidden": 8, "tail_labels": 4}}
    del content["trainer"]["max_epochs"]
    tiny.write_text(yaml.safe_dump(content))
    return tiny


@pytest.fixture
def refused(httn, fails, tmp_path):
    given = ["fit", "--config", str(httn), f"--runs={tmp_path}/no", "--wandb.mode=disabled"]
    return lambda *args, names=(): fails(*given, *args, names=names)


def head_state(folder, name):
    return read_checkpoint(folder / "checkpoints" / f"{name}.ckpt")["state_dict"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["--trainer.max_steps=5"], ["--trainer.max_steps"]),
        (["--trainer.accumulate_grad_batches=0"], ["--trainer.accumulate_grad_batches=0"]),
        (["--trainer.val_check_interval=0"], ["--trainer.val_check_interval=0"]),
        *(
            ([f"--stages.finetune.{name}=null"], [f"--stages.finetune.{name}=null"])
            for name in ("patience", "epochs", "trainable", "groups", "restore_best", "monitor", "average_every")
        ),
        (["--stages.finetune.epochs=1.5"], ["epochs", "1.5"]),
        (["--stages.finetune.lr=-1"], ["--stages.finetune.lr=-1"]),
        (["--stages.finetune.documents=transfer"], ["'transfer'"]),
        (["--stages.finetune.on_enter=[tail_documents]"], ["'tail_documents'", "TransitionContext"]),
        (["--stages.finetune.on_enter=[forward.__globals__.clear]"], ["no method", "__globals__"]),
        (["--stages.finetune.on_enter=[zero_grad]"], ["no method", "'zero_grad'"]),
        (["--stages.finetune.lr"], ["--stages.finetune.lr"]),
        (["--stages.finetune.lr", "--name=x"], ["--stages.finetune.lr"]),
        (["--config"], ["--config"]),
        (["--from_stage=tuning", "--ckpt=x.ckpt"], ["--from_stage=tuning", "head, transfer, finetune"]),
        (
            ["--stages.finetune.lr_scheduler={class_path: OneCycleLR, init_args: {max_lr: 0.1}}"],
            ["'finetune'", "total_steps"],
        ),
    ],
)
def test_it_is_refused_at_the_start(refused, given, names):
    refused(*given, names=names)


def test_fine_tuning_without_the_transfer_is_refused(httn, fit, refused):
    folder = fit(config=httn)
    assert not head_state(folder, "head")["head.ready"]
    names = ["PrototypeTransfer", "`on_enter: [transfer]`"]
    refused("--from_stage=finetune", f"--ckpt={folder}/checkpoints/head.ckpt", names=names)
    again = fit("--from_stage=finetune", f"--ckpt={folder}/checkpoints/transfer.ckpt", config=httn)
    assert head_state(again, "best")["head.ready"]


def test_the_best_checkpoint_is_the_last_stages_even_if_that_was_never_validated(httn, fit):
    folder = fit("--trainer.check_val_every_n_epoch=2", config=httn)
    best, last = head_state(folder, "best"), head_state(folder, "last")
    assert best["head.ready"]
    assert all(torch.equal(best[name], last[name]) for name in best)


def test_a_run_that_stops_before_its_end_is_not_tested(httn, fit, capsys):
    folder = fit("--trainer.max_time=00:00:00:00", config=httn)
    line_with(capsys.readouterr().err, "--ckpt_path")  # how to resume it
    assert not (folder / "metrics.json").exists()


def test_a_run_does_not_go_on_with_another_model(httn, fit, refused, fails, tmp_path, capsys):
    folder = fit(config=httn)
    args = ["fit", "--config", str(httn), f"--runs={tmp_path}/runs", "--wandb.mode=disabled", "--ckpt_path=last"]
    fails(*args, "--model.backbone.hidden=16", names=["model.backbone.hidden"])
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["backbone"]["init_args"]["hidden"] == 8


def test_the_config_of_a_continued_run_makes_a_new_one(httn, fit):
    first = fit("--ckpt_path=last", config=httn)
    config = first / "config.yaml"
    assert yaml.safe_load(config.read_text())["ckpt_path"] is None
    assert fit(config=config) != first


class Hasty(Linear):
    """Leaves the documents after the first batch, and notes the mode that it is trained in."""

    modes: list[bool]

    def glance(self, ctx):
        self.modes = []
        for _ in ctx.train_features():
            break

    def loss(self, features, targets, stage):
        if stage == "after":
            self.modes.append(self.training)
        return super().loss(features, targets, stage)


class Random(Linear):
    @torch.no_grad()
    def draw(self, ctx):
        self.classifier.weight.normal_()


def staged(path, head, stages):
    content = yaml.safe_load(path.read_text())
    content["model"]["head"], content["stages"] = head, stages
    del content["trainer"]["max_epochs"]
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_transition_that_leaves_early_does_not_turn_dropout_off(tiny, fit, monkeypatch):
    seen = []
    monkeypatch.setattr(Hasty, "modes", property(lambda self: seen, lambda self, value: None), raising=False)
    fit(config=staged(tiny, f"{__name__}.Hasty", [{"name": "after", "epochs": 1, "on_enter": ["glance"]}]))
    assert seen
    assert all(seen)


def test_what_a_transition_draws_does_not_depend_on_what_came_before(tiny, fit):
    stages = [{"name": "one", "epochs": 1}, {"name": "two", "on_enter": ["draw"]}]
    config = staged(tiny, f"{__name__}.Random", stages)
    whole = fit(config=config)
    short = fit("--stages.one.epochs=0", config=config)
    name = "head.classifier.weight"
    assert torch.equal(head_state(whole, "last")[name], head_state(short, "last")[name])
