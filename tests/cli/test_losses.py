import json
import re
from pathlib import Path

import pytest
import torch
import yaml

import zoo
from heads.losses import Focal
from zoo.commands.main import main

TEXTS = ["quota in the Baltic", "a document", "milk and butter"]


def test_a_loss_by_options_and_in_yaml_give_the_same_run(fit, tiny, read_metrics):
    by_options = fit("--model.head.loss=Focal", "--model.head.loss.gamma=1")
    config = yaml.safe_load(tiny.read_text())
    loss = {"class_path": "Focal", "init_args": {"gamma": 1.0}}
    config["model"]["head"] = {"class_path": "Linear", "init_args": {"loss": loss}}
    tiny.write_text(yaml.safe_dump(config))
    in_yaml = fit()
    assert read_metrics(by_options)["metrics"] == read_metrics(in_yaml)["metrics"]
    saved = yaml.safe_load((by_options / "config.yaml").read_text())["model"]["head"]["init_args"]["loss"]
    assert saved["class_path"] == "heads.losses.Focal"
    assert saved["init_args"]["gamma"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.head.loss=Focl"], "Focl"),
        (["--model.head.loss=Linear"], "Linear"),
        (["--model.head.loss=Focal", "--model.head.loss.gama=1"], "gama"),
        (["--model.head.loss=Focal", "--model.head.loss.gamma=-1"], "gamma=-1"),
        (["--model.head.loss=PropensityBCE", "--model.head.loss.form=best"], "best"),
    ],
)
def test_a_wrong_loss_ends_in_one_line(fails, tiny, tmp_path, options, words):
    assert words in fails("fit", f"--config={tiny}", f"--runs={tmp_path / 'r'}", "--wandb.mode=disabled", *options)


def test_a_checkpoint_with_a_loss_predicts(fit, tmp_path):
    ckpt = fit("--trainer.max_epochs=1", "--model.head.loss=DistributionBalanced") / "checkpoints" / "best.ckpt"
    source, target = tmp_path / "docs.txt", tmp_path / "tags.jsonl"
    source.write_text("\n".join(TEXTS))
    main(["predict", f"--ckpt={ckpt}", f"--input={source}", f"--out={target}", "--k=3"])
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [[tag["label"] for tag in row["labels"]] for row in found] == [
        [tag.label for tag in tags] for tags in zoo.load(ckpt).tag(TEXTS, k=3)
    ]
    weights = torch.load(ckpt, weights_only=True)["state_dict"]
    assert not [name for name in weights if "criterion" in name]


def test_losses_are_listed(capsys):
    main(["list"])
    assert Focal.__name__ in capsys.readouterr().out


def test_the_loss_in_the_docs_plugs_in_by_its_path(fit, tmp_path, monkeypatch, read_metrics):
    blocks = re.findall(r"```python\n(.*?)```", Path("docs/guides/new-head.md").read_text(), re.S)
    (code,) = [block for block in blocks if "(Loss):" in block]
    (tmp_path / "my_losses.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    folder = fit("--model.head.loss=my_losses.SmoothedBCE", "--model.head.loss.smoothing=0.2")
    assert read_metrics(folder)["metrics"]["P@1"] > 0
