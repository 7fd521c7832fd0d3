"""What a person can put right ends in one line, exit code 2, and no traceback."""

import importlib
import sys

import pytest
import torch
import yaml

from tests.support.output import line_with
from zoo.commands.lightning import lost_process
from zoo.commands.verbs import one_line_errors


def edit(path, **sections):
    config = yaml.safe_load(path.read_text())
    for section, values in sections.items():
        config[section] = values
    path.write_text(yaml.safe_dump(config))


def test_missing_config(fails):
    fails("fit", "--config", "nowhere.yaml", names=["nowhere.yaml"])


def test_misspelt_section(fails, tiny):
    edit(tiny, modle={})
    fails("fit", "--config", str(tiny), names=[tiny, "'modle'", "model"])


@pytest.mark.parametrize("section", ["trainer", "model", "data", "best", "wandb"])
@pytest.mark.parametrize("value", [3, None])
def test_a_section_that_is_none(fails, tiny, section, value):
    edit(tiny, **{section: value})
    fails("fit", "--config", str(tiny), names=[f"`{section}`", repr(value)])


def test_an_empty_config_and_a_missing_part(fails, tiny):
    edit(tiny, trainer="parts/none.yaml")
    fails("fit", "--config", str(tiny), names=["parts/none.yaml"])
    tiny.write_text("")
    fails("fit", "--config", str(tiny), names=[tiny])


def test_a_loss_that_is_no_longer_finite_stops_the_run(fails, tiny, tmp_path):
    given = [f"--config={tiny}", f"--runs={tmp_path / 'r'}", "--wandb.mode=disabled", "--model.optimizer.lr=1e30"]
    fails("fit", *given, names=["loss", "finite"])
    assert not list((tmp_path / "r").glob("*/*/checkpoints/*"))


def test_a_run_folder_that_cannot_be_made(fails, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    fails("fit", f"--config={tiny}", f"--runs={tmp_path / 'file'}", "--wandb.mode=disabled", names=[tmp_path / "file"])


def test_broken_yaml(fails, tiny):
    tiny.write_text("model: {")
    fails("fit", "--config", str(tiny), names=[tiny, "YAML"])


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
        ("--data.batch_size=0", "--data.batch_size=0"),
        ("--data.val_fraction=2", "val_fraction=2"),
        ("--data.tokenizer=no/such/folder", "no/such/folder"),
        ("--data.vectors=nowhere.txt", "nowhere.txt"),
        ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt"),
        ("--model.depth=2", "--model.depth=2"),
        ("--model.optimizer.lr=-1", "learning rate"),
        ("--model.backbone.dropout=2", "dropout"),
        ("--model.backbone.hidden=-1", "--model.backbone.hidden=-1"),
        ("--trainer.overfit_batches=2", "--data.limit_train"),
        ("--trainer.devices=0", "devices"),
        ("--trainer.devices=999", "ZOO_OVERSUBSCRIBE=1"),
        ("--trainer.precision=bf16-true", "--trainer.precision=bf16-true"),
        ("--trainer.precision=64-true", "--trainer.precision=64-true"),
        ("--name=../elsewhere", "../elsewhere"),
        ("--name=..", "--name='..'"),
        ("--best.filename=../../x", "../../x"),
        ("--seed_everything=-1", "seed_everything=-1"),
        ("--seed_everything=4294967296", "seed_everything=4294967296"),
        ("--trainer.gradient_clip_val=-1", "--trainer.gradient_clip_val=-1"),
        ("--model.optimizer.lr=.inf", "--model.optimizer.lr=inf"),
        ("--model.head=DenseHead", "abstract"),
        ("--best.monitor=val/nothing", "val/nothing"),
    ],
)
def test_a_wrong_setting_is_named(fails, tiny, tmp_path, monkeypatch, argument, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = ["--config", str(tiny), f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", argument]
    line = fails("fit", *given, names=[words])
    assert len(line) < 500


@pytest.mark.parametrize("code", ["class X(", "raise RuntimeError('boom')", "import nothing_there"])
def test_a_module_that_fails_at_import_is_named(fails, tiny, tmp_path, monkeypatch, code):
    name = f"broken_{len(code)}"
    (tmp_path / f"{name}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    fails("fit", "--config", str(tiny), f"--model.head={name}.X", names=[name])


def test_missing_corpus_says_where_it_looked_and_how_to_get_it(fails, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    edit(tiny, data={"class_path": "EurLex", "init_args": {"download": False}})
    fails("fit", "--config", str(tiny), names=[tmp_path / "data" / "eurlex57k", "--data.root"])


def test_bad_rows_are_named_with_file_and_lines(fails, tiny, tmp_path):
    good = '{"text": "a", "labels": ["x"]}'
    (tmp_path / "train.jsonl").write_text("\n".join([good, "{", good, '{"text": "b", "labels": 3}']))
    edit(tiny, data={"class_path": "TextFiles", "init_args": {"train": str(tmp_path / "train.jsonl")}})
    fails("fit", "--config", str(tiny), names=["train.jsonl", "2, 4", "--data.max_bad_rows=2"])


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
    source, files = f"--input={tmp_path / 'in.txt'}", ["nowhere.ckpt", tmp_path / "x.ckpt", tmp_path / "other.ckpt"]
    lines = [fails("predict", f"--ckpt={file}", source, names=[file]) for file in files]
    assert len({line.replace(str(file), "") for line, file in zip(lines, files, strict=True)}) == 3


def test_checkpoint_of_another_corpus(fails, fit, tiny, tmp_path):
    best = fit() / "checkpoints" / "best.ckpt"
    fails("test", f"--ckpt={best}", "--data.num_labels=30", names=["labels"])
    fails("test", f"--ckpt={best}", "--data.words_per_document=80", names=["vocabulary"])


def test_unknown_verb(fails):
    fails("train", names=["train"])


def test_full_disk(fails, tiny, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datamodules.prepare.preparation.RowWriter.write_batch", full)
    fails("fit", "--config", str(tiny), names=["disk"])
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


def test_a_module_that_ends_the_program_while_it_is_imported_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_exiting.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as left, one_line_errors():
        importlib.import_module("my_exiting")
    assert left.value.code == 2
    assert "my_exiting" in line_with(capsys.readouterr().err, "error:")
    with pytest.raises(SystemExit) as left, one_line_errors():
        sys.exit(0)
    assert left.value.code == 0


def test_files_that_vanish_end_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as left, one_line_errors():
        (tmp_path / "gone" / "metrics.csv").write_text("")
    assert left.value.code == 2
    assert "gone" in line_with(capsys.readouterr().err, "error:", "ZOO_TRACEBACK")
    with pytest.raises(OSError, match="no file"), one_line_errors():  # a mistake of the program
        raise OSError("no file")


def test_a_lost_process_is_one_line():
    assert "another process" in lost_process(RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection reset by peer"))
    assert lost_process(RuntimeError("shape mismatch")) is None
    assert lost_process(ValueError("gloo")) is None
