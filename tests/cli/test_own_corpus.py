"""A corpus of one's own, in one line."""

import csv
import json

import pytest

from datamodules.synthetic import SampleCorpus
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

SHORT = [
    "--stages.representation.epochs=1",
    "--stages.representation.average_from=0",
    "--stages.adjust.epochs=1",
    "--model.backbone.hidden=8",
    "--model.backbone.embed_dim=8",
    "--model.head.pvae.epochs=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]


@pytest.fixture
def documents():
    return list(SampleCorpus(num_documents=200, num_labels=30, words_per_document=30).documents("train"))


@pytest.fixture
def table(documents, tmp_path):
    path = tmp_path / "my.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "tags"])
        rows.writerows([document.text, ";".join(document.labels)] for document in documents)
    return path


def arguments(tmp_path, *data):
    return ["fit", "--config=experiments/lsfa.yaml", *data, f"--runs={tmp_path}", "--wandb.mode=disabled", *SHORT]


COLUMNS = ["--data.text_column=body", "--data.label_column=tags"]


def test_a_table_with_columns_of_any_name(table, tmp_path, documents, read_metrics):
    texts = tmp_path / "labels.csv"
    names = sorted({label for document in documents for label in document.labels})
    texts.write_text("label,text\n" + "".join(f'"{name}","about {name}"\n' for name in names))
    main(arguments(tmp_path, "--data=TextFiles", f"--data.train={table}", *COLUMNS, "--data.label_sep=;",
                   f"--data.label_texts={texts}"))  # fmt: skip
    (run,) = (tmp_path / "lsfa").iterdir()
    assert read_metrics(run)["metrics"]["P@1"] > 0
    space = read_checkpoint(run / "checkpoints" / "best.ckpt")["zoo"]["space"]
    assert space["texts"] == [f"about {name}" for name in space["names"]]


def test_a_dataset_of_the_hub_by_the_names_of_its_columns(documents, tmp_path, read_metrics, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    folder = tmp_path / "news"
    folder.mkdir()
    rows = [json.dumps({"body": document.text, "tags": document.labels}) for document in documents]
    (folder / "train.jsonl").write_text("\n".join(rows))
    main(arguments(tmp_path, "--data=HubDataset", f"--data.dataset={folder}", *COLUMNS))
    (run,) = (tmp_path / "lsfa").iterdir()
    assert read_metrics(run)["data"] == "news"


def test_a_wrong_column_is_told_in_one_line(table, tmp_path, fails):
    given = arguments(tmp_path, "--data=TextFiles", f"--data.train={table}", "--data.label_column=tags")
    fails(*given, names=[table, "'text'", "'body'", "'tags'", "--data.text_column="])
