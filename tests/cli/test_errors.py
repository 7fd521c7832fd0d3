"""What a person can put right ends in one line, exit code 2, and no traceback."""

import pytest
import torch
import yaml


def edit(path, **sections):
    config = yaml.safe_load(path.read_text())
    for section, values in sections.items():
        config[section] = values
    path.write_text(yaml.safe_dump(config))


def test_missing_config(fails):
    assert fails("fit", "--config", "nowhere.yaml") == "no such configuration: nowhere.yaml"


def test_misspelt_section(fails, tiny):
    edit(tiny, modle={})
    assert fails("fit", "--config", str(tiny)) == f"{tiny}: unknown key 'modle'; did you mean 'model'?"


@pytest.mark.parametrize("section", ["trainer", "model", "data", "best", "wandb"])
@pytest.mark.parametrize("value", [3, None])
def test_a_section_that_is_none(fails, tiny, section, value):
    edit(tiny, **{section: value})
    assert f"`{section}` is {value!r}: expected settings" in fails("fit", "--config", str(tiny))


def test_an_empty_config_and_a_missing_part(fails, tiny):
    edit(tiny, trainer="parts/none.yaml")
    assert "no such configuration" in fails("fit", "--config", str(tiny))
    tiny.write_text("")
    assert "expected sections" in fails("fit", "--config", str(tiny))


def test_a_loss_that_is_no_longer_finite_stops_the_run(fails, tiny, tmp_path):
    line = fails(
        "fit", f"--config={tiny}", f"--runs={tmp_path / 'r'}", "--wandb.mode=disabled", "--model.optimizer.lr=1e30"
    )
    assert "no longer finite" in line
    assert not list((tmp_path / "r").glob("*/*/checkpoints/*"))


def test_a_run_folder_that_cannot_be_made(fails, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    line = fails("fit", f"--config={tiny}", f"--runs={tmp_path / 'file'}", "--wandb.mode=disabled")
    assert "cannot make the run folder" in line


def test_broken_yaml(fails, tiny):
    tiny.write_text("model: {")
    assert "is not valid YAML" in fails("fit", "--config", str(tiny))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--model.head=Foo", "Foo"),
        ("--model.head.hiden=3", "hiden"),
        ("--model.backbone.hidden=wide", "wide"),
        ("--data.batchsize=3", "batchsize"),
        ("--trainer.max_epoch=3", "max_epoch"),
        ("--data.num_labels=2", "num_labels"),
        ("--data.on_missing=perhaps", "perhaps"),
        ("--data.batch_size=0", "at least 1"),
        ("--data.val_fraction=2", "between 0 and 1"),
        ("--data.tokenizer=no/such/folder", "no tokenizer"),
        ("--data.vectors=nowhere.txt", "no word vectors at nowhere.txt"),
        ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt"),
        ("--model.depth=2", "--model.depth=2 is too small"),
        ("--model.optimizer.lr=-1", "learning rate"),
        ("--model.backbone.dropout=2", "dropout"),
        ("--model.backbone.hidden=-1", "the settings do not fit"),
        ("--trainer.overfit_batches=2", "--data.limit_train"),
        ("--trainer.devices=0", "devices"),
        ("--name=../elsewhere", "is not a name"),
        ("--best.monitor=val/nothing", "val/nothing"),
    ],
)
def test_a_wrong_setting_is_named(fails, tiny, tmp_path, monkeypatch, argument, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = fails("fit", "--config", str(tiny), f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", argument)
    assert words in line
    assert len(line) < 500


def test_missing_corpus_says_where_it_looked_and_how_to_get_it(fails, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    edit(tiny, data={"class_path": "EurLex", "init_args": {"download": False}})
    line = fails("fit", "--config", str(tiny))
    assert str(tmp_path / "data" / "eurlex57k") in line
    assert "--data.root" in line


def test_bad_rows_are_named_with_file_and_lines(fails, tiny, tmp_path):
    good = '{"text": "a", "labels": ["x"]}'
    (tmp_path / "train.jsonl").write_text("\n".join([good, "{", good, '{"text": "b", "labels": 3}']))
    edit(tiny, data={"class_path": "TextFiles", "init_args": {"train": str(tmp_path / "train.jsonl")}})
    line = fails("fit", "--config", str(tiny))
    assert "train.jsonl: 2 bad rows" in line
    assert "lines 2, 4" in line
    assert "--data.max_bad_rows=2" in line


def test_vectors_of_another_width(fails, tiny, tmp_path):
    (tmp_path / "v.txt").write_text("the 1 2 3\nof 4 5 6\n")
    line = fails(
        "fit",
        "--config",
        str(tiny),
        f"--runs={tmp_path / 'r'}",
        "--wandb.mode=disabled",
        f"--data.vectors={tmp_path / 'v.txt'}",
    )
    assert "--model.backbone.embed_dim=3" in line


def test_checkpoint_that_is_none(fails, tmp_path):
    (tmp_path / "x.ckpt").write_text("hello")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    (tmp_path / "in.txt").write_text("a document\n")
    source = f"--input={tmp_path / 'in.txt'}"
    assert "no such checkpoint" in fails("predict", "--ckpt=nowhere.ckpt", source)
    assert "is not a checkpoint, or is damaged" in fails("predict", f"--ckpt={tmp_path / 'x.ckpt'}", source)
    assert "was not written by zoo fit" in fails("predict", f"--ckpt={tmp_path / 'other.ckpt'}", source)


def test_checkpoint_of_another_corpus(fails, fit, tiny, tmp_path):
    best = fit() / "checkpoints" / "best.ckpt"
    line = fails("test", f"--ckpt={best}", "--data.num_labels=30")
    assert "trained on other labels" in line
    line = fails("test", f"--ckpt={best}", "--data.words_per_document=80")
    assert "another vocabulary" in line


def test_unknown_verb(fails):
    assert "train" in fails("train")


def test_full_disk(fails, tiny, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datamodules.prepare.RowWriter.write_batch", full)
    assert "the disk is full" in fails("fit", "--config", str(tiny))
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]
