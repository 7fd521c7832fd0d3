import csv

import pytest
import torch
import yaml

from tests.support.output import line_with
from zoo.commands.main import main


def test_a_run_folder_holds_config_metrics_logs_and_checkpoints(fit, read_metrics):
    folder = fit()
    assert folder.parent.name == "tiny"
    assert folder.name.endswith("-sample")
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    summary = read_metrics(folder)
    assert summary["data"] == "sample"
    assert summary["sample"] is True
    assert summary["seed"] == 0
    assert summary["split"] == "test"
    assert summary["seconds"] > 0
    assert summary["parameters"] > 1000
    assert 0 < summary["metrics"]["P@1"] <= 1
    assert {"PSP@5", "macroF@5/few", "microF1@0.5", "microF1@tuned", "macroP@5/bin01"} <= set(summary["metrics"])
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["head"]["class_path"] == "heads.Linear"
    logged = set(next(csv.reader((folder / "metrics.csv").open())))
    assert {"val/nDCG@5", "train/main/loss_epoch", "val/macroF@5/few"} <= logged


def test_two_runs_with_one_seed_give_identical_metrics(fit, read_metrics):
    one, two, other = (read_metrics(fit(f"--seed_everything={seed}"))["metrics"] for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_the_written_config_repeats_the_run(fit, read_metrics):
    first = fit("--model.head.hidden=4")
    again = fit(config=first / "config.yaml")
    assert read_metrics(again)["metrics"] == read_metrics(first)["metrics"]


def test_final_test_can_be_left_out(fit):
    folder = fit("--final_test=false")
    assert not (folder / "metrics.json").exists()
    assert (folder / "checkpoints" / "last.ckpt").exists()


def test_test_from_the_checkpoint_alone_repeats_the_final_table(fit, capsys, read_metrics):
    folder = fit()
    capsys.readouterr()
    main(["test", "--ckpt", str(folder / "checkpoints" / "best.ckpt"), "--trainer.accelerator=cpu"])
    table = capsys.readouterr().out
    metrics = read_metrics(folder)["metrics"]
    assert f"{100 * metrics['P@1']:.2f}" in table
    assert f"{100 * metrics['PSP@5']:.2f}" in table
    line_with(table, "sample", "test")  # its title


def test_validate_reports_the_validation_documents(fit, tiny, capsys):
    folder = fit()
    capsys.readouterr()
    main(["validate", f"--config={tiny}", f"--ckpt_path={folder / 'checkpoints' / 'best.ckpt'}"])
    line_with(capsys.readouterr().out, "tiny", "sample", "validation")


def test_a_checkpoint_opens_with_weights_only(fit):
    checkpoint = torch.load(fit() / "checkpoints" / "last.ckpt", weights_only=True)
    stored = {"format", "config", "backbone", "space", "tokenizer", "max_length", "windows", "calibration"}
    assert set(checkpoint["zoo"]) == stored


def test_a_resume_inside_an_epoch_sees_the_remaining_rows_only(fit, tmp_path):
    steps = tmp_path / "steps"
    each_step = [
        "--trainer.callbacks+=ModelCheckpoint",
        f"--trainer.callbacks.dirpath={steps}",
        "--trainer.callbacks.filename={step}",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks.save_top_k=-1",
    ]
    # without dropout: its random state is not part of what a sampler has to restore
    plain = ["--model.backbone.dropout=0", "--model.backbone.embed_dropout=0"]
    straight = fit(*plain, *each_step)
    per_epoch = len(list(steps.iterdir())) // 2
    resumed = fit(*plain, f"--ckpt_path={steps / f'step={per_epoch + 3}.ckpt'}")
    one, two = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (straight, resumed))
    assert one["global_step"] == two["global_step"]
    differing = [n for n, value in one["state_dict"].items() if not torch.equal(value, two["state_dict"][n])]
    assert differing == []


def test_own_files_train_from_the_command_line(fit, tiny, tmp_path, read_metrics):
    rows = [f"doc {i},{'cats' if i % 2 else 'dogs'} and things,{'cat' if i % 2 else 'dog'};pet" for i in range(60)]
    corpus = tmp_path / "mine" / "all.csv"
    corpus.parent.mkdir()
    corpus.write_text("\n".join(["name,body,tags", *rows]))
    config = yaml.safe_load(tiny.read_text())
    del config["data"]
    tiny.write_text(yaml.safe_dump(config))
    columns = ["--data.text_column=body", "--data.label_column=tags", "--data.id_column=name", "--data.label_sep=;"]
    folder = fit("--data=TextFiles", f"--data.train={corpus}", *columns, "--trainer.max_epochs=8")
    summary = read_metrics(folder)
    assert summary["data"] == "mine"
    assert summary["sample"] is False
    assert summary["split"] == "val"  # there are no test documents
    assert summary["metrics"]["P@1"] == pytest.approx(1.0)


def test_a_missing_corpus_runs_on_the_sample_and_nobody_can_miss_it(fit, tiny, capsys, read_metrics):
    config = yaml.safe_load(tiny.read_text())
    config["data"] = {"class_path": "EurLex", "init_args": {"on_missing": "sample", "download": False}}
    config["trainer"] |= {"limit_train_batches": 1, "max_epochs": 1}
    tiny.write_text(yaml.safe_dump(config))
    folder = fit()
    shown = capsys.readouterr()
    line_with(shown.err.lower(), "╭", "sample")  # a panel
    line_with(shown.err, "eurlex57k")
    line_with(shown.out, "tiny", "sample", "test")
    assert folder.name.endswith("-sample")
    assert read_metrics(folder)["sample"] is True
    assert yaml.safe_load((folder / "hparams.yaml").read_text())["sample"] is True


def test_parts_are_put_in_and_single_settings_override_them(fit, tiny, tmp_path):
    config = yaml.safe_load(tiny.read_text())
    part = config.pop("trainer") | {"log_every_n_steps": 7}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(part))
    tiny.write_text(yaml.safe_dump({"trainer.max_epochs": 1, "trainer": "part.yaml", **config}))
    written = yaml.safe_load((fit() / "config.yaml").read_text())
    assert written["trainer"]["max_epochs"] == 1
    assert written["trainer"]["log_every_n_steps"] == 7
    assert written["name"] == "tiny"


def test_a_plain_checkpoint_callback_of_the_user_fits_beside_ours(fit, tmp_path):
    folder = fit("--trainer.callbacks+=ModelCheckpoint", f"--trainer.callbacks.dirpath={tmp_path / 'mine'}")
    assert len(list((tmp_path / "mine").iterdir())) == 1
    assert (folder / "checkpoints" / "last.ckpt").exists()


def test_the_newest_weights_are_kept_also_without_validation(fit):
    folder = fit("--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2")
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 2
    assert torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["epoch"] == 1


def test_names_with_brackets_are_only_names(fit, capsys):
    fit("--name=a[b]", "--trainer.max_epochs=1")
    line_with(capsys.readouterr().out, "a[b]", "sample", "test")
