"""Settings of stages on the command line, and mistakes in them."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.stages.recording import (
    BATCHES,
    Recorder,
    ckpt,
    differing,
    parameters,
    recorded,
    weights,
)


def test_settings_of_a_stage_are_overridden_by_its_name(config, go):
    stages = """
  - {name: first, epochs: 2, optimizer: {class_path: SGD, init_args: {lr: 0.5, momentum: 0.9}}}
  - {name: second, epochs: 1, optimizer: SGD}
"""
    folder = go(
        config(stages),
        "--stages.first.epochs=1",
        "--stages.first.optimizer.lr=1e-4",
        "--stages.first.trainable=[head.*, backbone.pool.*]",
        "--stages.second.optimizer.momentum",
        "0.5",
        "--stages.second.lr=2e-3",
        "--stages.second.documents=few",
    )
    assert {stage: len(rows) for stage, rows in recorded("rows").items()} == {"first": BATCHES, "second": 2}
    assert {stage: rates[0] for stage, rates in recorded("lr").items()} == {"first": [1e-4], "second": [2e-3]}
    moved = parameters(differing(Recorder.weights[0], weights(folder, "first")))
    assert {name.rsplit(".", 1)[0] for name in moved} == {"head.classifier", "backbone.pool.score"}
    written = {stage["name"]: stage for stage in yaml.safe_load((folder / "config.yaml").read_text())["stages"]}
    assert (
        written["first"]["optimizer"]["init_args"] | {"lr": 1e-4, "momentum": 0.9}
        == (written["first"]["optimizer"]["init_args"])
    )
    assert written["second"]["optimizer"]["init_args"]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("--stages.third.epochs=1", ["third", "first, second"]),
        ("--stages.first=1", ["stages.NAME.SETTING"]),
        ("--stages.first.epoch=1", ["'epoch'", "epochs"]),
        ("--stages.first.epochs=many", ["epochs", "many"]),
        ("--stages.first.epochs=-1", ["--stages.first.epochs=-1"]),
        ("--stages.first.optimizer.lr=1", ["stages.first.optimizer.lr", "'optimizer'"]),
        ("--stages.first.trainable=[head.nothing]", ["first", "trainable", "head.nothing"]),
        ("--stages.first.trainable=[head", ["stages.first.trainable", "YAML"]),
        ("--stages.first.on_enter=[tripple]", ["first", "Odd", "tripple"]),
        ("--stages.first.monitor=val/none", ["first", "val/none"]),
        ("--stages.first.optimizer={class_path: SGD, init_args: {lr: -1}}", ["first", "learning rate"]),
        ("--stages.first.optimizer=Foo", ["Foo"]),
        ("--trainer.max_epochs=3", ["--stages.NAME.epochs"]),
        ("--trainer.callbacks+={class_path: EarlyStopping, init_args: {monitor: val/P@1}}", ["patience"]),
        ("--trainer.strategy=fsdp", ["fsdp", "ddp"]),
        ("--trainer.strategy=deepspeed", ["deepspeed", "ddp"]),
        ("--trainer.strategy=deepspeed_stage_2", ["deepspeed_stage_2", "ddp"]),
        ("--trainer.overfit_batches=2", ["--data.limit_train"]),
        ("--model.head=PrototypeTransfer", ["PrototypeTransfer", "on_enter: [transfer]"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(config, refused, argument, names):
    extra = ["--stages.first.patience=1"] if "monitor" in argument else []
    refused(config(), argument, *extra, names=names)


def test_a_checkpoint_of_weights_alone_cannot_be_gone_on_with(config, go, refused):
    path = config()
    refused(path, f"--ckpt_path={ckpt(go(path), 'first')}", names=["--from_stage", "--ckpt"])


def test_a_stage_that_the_experiment_has_no_longer_is_named(config, go, refused):
    last = ckpt(go(config()), "last")
    refused(config("\n  - {name: other, epochs: 1}"), f"--ckpt_path={last}", names=["'second'", "other"])
