"""An encoder from a folder, through the real command line."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

import zoo
from tests.cli.test_add_labels import COD, FEW, TEXTS
from tests.support.encoders import save_bert
from tests.support.errors import raises
from tests.support.output import line_with
from zoo.commands.main import main
from zoo.core.errors import UserError
from zoo.training.checkpoint import read_checkpoint

TINY = """
data:
  class_path: Sample
  init_args: {num_documents: 100, num_labels: 20, words_per_document: 20, batch_size: 16, max_length: 32}
trainer:
  accelerator: cpu
  max_epochs: 1
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
model:
  backbone: Transformer
  head: Linear
  optimizer: {class_path: Adam, init_args: {lr: 0.001}}
"""
PROTOTYPES = """
head: {class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2, members: 2}}
"""
STAGES = """
- {name: head, epochs: 1, trainable: ["backbone.*", head.project.*, head.head, head.scale], documents: head_documents}
- {name: transfer, on_enter: [transfer]}
"""


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def named(bert):
    return f"--model.backbone.name={bert}"


@pytest.fixture
def refused(fails, tiny, tmp_path):
    def run(*args: str, names: Sequence[object]) -> None:
        given = [f"--config={tiny}", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]
        assert len(fails("fit", *given, *args, names=names)) < 400

    return run


def best(folder: Path) -> Path:
    return folder / "checkpoints" / "best.ckpt"


def written(folder: Path):
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_its_name_alone_changes_the_tokenizer_too(fit, bert, named, tmp_path, capsys):
    folder = fit(named)
    assert written(folder)["data"]["init_args"]["tokenizer"] == str(bert)
    stored = read_checkpoint(best(folder))["zoo"]
    assert "[CLS]" in stored["tokenizer"]
    assert stored["backbone"]["name"] == "bert"
    (tmp_path / "in.txt").write_text("the quota for herring\n" * 3)
    main(["predict", f"--ckpt={best(folder)}", f"--input={tmp_path / 'in.txt'}", f"--out={tmp_path / 'out.jsonl'}"])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert len(rows[0]["labels"]) == 5
    assert "tokenizer" not in capsys.readouterr().err


def test_validate_and_test_from_the_checkpoint_alone(fit, named, capsys, read_metrics):
    folder = fit(named)
    capsys.readouterr()
    main(["test", f"--ckpt={best(folder)}", "--trainer.accelerator=cpu"])
    assert f"{100 * read_metrics(folder)['metrics']['P@1']:.2f}" in capsys.readouterr().out
    main(["validate", f"--ckpt={best(folder)}", "--trainer.accelerator=cpu"])
    assert "validation" in capsys.readouterr().out


def test_a_run_goes_on_as_if_it_had_not_stopped(fit, tiny, named, tmp_path):
    plain = '--model.backbone.config={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}'
    whole = fit(named, plain, "--trainer.max_epochs=2", "--name=whole")
    parts = fit(named, plain, "--name=parts", "--final_test=false")
    again = ["fit", f"--config={tiny}", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", "--name=parts"]
    main([*again, named, plain, "--trainer.max_epochs=2", "--ckpt_path=last"])
    one, two = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (whole, parts))
    assert one["global_step"] == two["global_step"]
    assert all(torch.equal(value, two["state_dict"][name]) for name, value in one["state_dict"].items())


def test_a_kind_of_model_has_no_tokenizer(fit):
    small = '{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}'
    folder = fit("--model.backbone.name=bert", "--model.backbone.pretrained=false", f"--model.backbone.config={small}")
    assert written(folder)["data"]["init_args"]["tokenizer"] == "word"


def test_random_weights_still_have_the_folder_s_tokenizer(fit, named, bert):
    folder = fit(named, "--model.backbone.pretrained=false", "--trainer.limit_train_batches=1")
    assert written(folder)["data"]["init_args"]["tokenizer"] == str(bert)


def test_another_tokenizer_is_told_of(fit, bert, named, capsys):
    fit(named, "--data.tokenizer=word", "--data.max_words=50", "--trainer.limit_train_batches=1")
    line_with(capsys.readouterr().err, "tokenizer", "word", bert)


def test_a_function_that_makes_the_backbone(fit, tmp_path, monkeypatch):
    (tmp_path / "my_backbone.py").write_text(
        "from backbones import CNN, Backbone\nfrom datamodules import LabelSpace\n\n\n"
        "def make(space: LabelSpace) -> Backbone:\n    return CNN(space, embed_dim=8, dim=8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = fit("--model.backbone=my_backbone.make", "--trainer.limit_train_batches=1")
    with raises(UserError, "my_backbone.make", "`trust=my_backbone`"):
        zoo.load(best(folder))
    assert zoo.load(best(folder), trust=["my_backbone"]).tag(["herring"])[0]


# --- the checkpoint alone


@pytest.fixture
def orphan(fit, tiny, bert, named, monkeypatch):
    """A checkpoint whose encoder's folder is gone, and no net."""
    config = yaml.safe_load(TINY)
    config["model"] |= yaml.safe_load(PROTOTYPES)
    config["trainer"].pop("max_epochs")
    tiny.write_text(yaml.safe_dump(config | {"stages": yaml.safe_load(STAGES)}))
    path = best(fit(named, "--data.limit_train=70", "--final_test=false"))
    before = zoo.load(path).tag(TEXTS)
    shutil.rmtree(bert)

    def fail(*_, **__):
        raise AssertionError("looked at the net")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", fail)
    return path, before


def test_a_checkpoint_needs_neither_the_folder_nor_the_net(orphan, bert, tmp_path):
    path, before = orphan
    tagger = zoo.load(path)
    assert tagger.tag(TEXTS) == before
    tagger.add_labels(FEW)
    found = tagger.tag(TEXTS, k=30)
    assert any(tag.label == COD for tags in found for tag in tags)
    tagger.save(tmp_path / "grown.ckpt")
    again = zoo.load(tmp_path / "grown.ckpt")
    assert again.tag(TEXTS, k=30) == found
    again.save(tmp_path / "once more.ckpt")
    assert zoo.load(tmp_path / "once more.ckpt").tag(TEXTS, k=30) == found
    assert not bert.exists()


def test_the_command_line_predicts_and_adds_labels_without_the_folder(orphan, tmp_path):
    path, _ = orphan
    rows = "".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in FEW)
    (tmp_path / "few.jsonl").write_text(rows)
    main(["add-labels", f"--ckpt={path}", f"--input={tmp_path / 'few.jsonl'}", f"--out={tmp_path / 'grown.ckpt'}"])
    (tmp_path / "in.txt").write_text("cod\n")
    source = f"--input={tmp_path / 'in.txt'}"
    main(["predict", f"--ckpt={tmp_path / 'grown.ckpt'}", source, f"--out={tmp_path / 'out.jsonl'}"])
    assert (tmp_path / "out.jsonl").read_text().count("label") > 1


def test_a_test_without_the_folder_says_what_is_missing(orphan, bert, fails):
    fails("test", f"--ckpt={orphan[0]}", names=["tokenizer", f"'{bert}'"])


def test_a_checkpoint_from_before_takes_the_folder(fit, named, tmp_path):
    path = best(fit(named))
    content = torch.load(path, weights_only=True)
    del content["zoo"]["backbone"]
    torch.save(content, tmp_path / "old.ckpt")
    with raises(UserError, "old.ckpt", "`trust=backbones`"):
        zoo.load(tmp_path / "old.ckpt")
    assert zoo.load(tmp_path / "old.ckpt", trust=["backbones"]).tag(TEXTS) == zoo.load(path).tag(TEXTS)


# --- lengths


def test_documents_longer_than_the_encoder_reads(refused, named):
    refused(named, "--data.max_length=500", "--data.words_per_document=150", names=[128, "--data.max_length"])


def test_short_documents_are_fine_and_later_ones_are_cut(fit, named, tmp_path):
    corpus = tmp_path / "short.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{w} quota", "labels": [w]}) + "\n" for w in ["milk", "cod"] * 30))
    data = ["--data=TextFiles", f"--data.train={corpus}", "--data.max_length=500"]
    path = best(fit(named, *data))
    assert read_checkpoint(path)["zoo"]["max_length"] == 128
    assert len(zoo.load(path).tag(["milk " * 1000])[0]) == 2
    main(["validate", f"--ckpt={path}", "--trainer.accelerator=cpu"])


# --- what goes wrong


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("--model.backbone.config={hiden_size: 3}", ["hiden_size", "'hidden_size'"]),
        ("--model.backbone.config=3", ["config", "dict"]),
        ("--model.backbone.config={hidden_size: wide}", ["hidden_size", "wide", "int"]),
        ("--model.backbone.attention=fast", ["attention", "sdpa"]),
        ("--model.backbone.pooling=max", ["pooling", "max"]),
        ("--model.backbone.name=/no/such/folder", ["'/no/such/folder'"]),
        ("--data.tokenizer=/no/such/folder", ["'/no/such/folder'", "--data.tokenizer"]),
        ("--data.vectors=v.txt", ["Transformer", "--data.vectors"]),
    ],
)
def test_a_wrong_setting_is_named(refused, named, tmp_path, monkeypatch, argument, names):
    (tmp_path / "v.txt").write_text("the 1 2 3\n")
    monkeypatch.chdir(tmp_path)
    refused(named, argument, names=names)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file(refused, bert, named, file):
    (bert / file).unlink()
    what = "tokenizer" if file == "tokenizer.json" else "encoder"
    refused(named, names=[what, f"'{bert}'"])


def test_a_tokenizer_with_more_tokens_than_the_encoder(refused, named, tmp_path):
    other = save_bert(tmp_path / "other", [" ".join(chr(i) for i in range(0x4E00, 0x4F00))])
    refused(named, f"--data.tokenizer={other}", names=["--data.tokenizer"])


def test_the_default_encoder_without_the_net(refused, tmp_path, monkeypatch):
    import huggingface_hub.constants

    def fail(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    refused(names=["FacebookAI/roberta-base", "--model.backbone.name"])
