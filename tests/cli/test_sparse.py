"""A corpus of features through the command line: training, labels from the checkpoint alone, and mistakes."""

import gzip
import io
import json
from random import Random

import pytest
import torch

import zoo
from tests.support.output import line_with
from zoo.commands.main import main

MODEL = """
data:
  class_path: SparseFiles
  init_args: {{train: {folder}/train.xmc.gz, test: {folder}/test.xmc, batch_size: 16}}
trainer:
  accelerator: cpu
  max_epochs: 8
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
model:
  backbone: {{class_path: Bow, init_args: {{dim: 16, dropout: 0.0}}}}
  head: Linear
  optimizer: {{class_path: Adam, init_args: {{lr: 0.03}}}}
"""
LABELS, FEATURES = 6, 20


def line(random):
    """Labels, and the features that tell them; others are noise."""
    labels = sorted(random.sample(range(LABELS), random.randint(1, 2)))
    pairs = [(label, random.randint(2, 5)) for label in labels]
    pairs += [(i, round(random.random(), 2)) for i in sorted(random.sample(range(LABELS, FEATURES), 3))]
    return ",".join(map(str, labels)) + " " + " ".join(f"{i}:{value}" for i, value in pairs)


def written(folder, size):
    random = Random(size)
    return f"{size} {FEATURES} {LABELS}\n" + "".join(line(random) + "\n" for _ in range(size))


@pytest.fixture
def sparse(tmp_path):
    """The configuration of a run on a tiny corpus."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.xmc.gz").write_bytes(gzip.compress(written(folder, 200).encode()))
    (folder / "test.xmc").write_text(written(folder, 40))
    path = tmp_path / "sparse.yaml"
    path.write_text(MODEL.format(folder=folder))
    return path


def predicted(capsys, *args):
    capsys.readouterr()
    main(["predict", *args])
    return [[tag["label"] for tag in json.loads(line)["labels"]] for line in capsys.readouterr().out.splitlines()]


def test_it_learns_and_a_checkpoint_labels_lines_of_features(sparse, fit, read_metrics, capsys, monkeypatch, tmp_path):
    folder = fit(config=sparse)
    assert read_metrics(folder)["metrics"]["P@1"] > 0.9
    ckpt = str(folder / "checkpoints" / "best.ckpt")
    monkeypatch.setattr("sys.stdin", io.StringIO("4:3 17:0.5\n1 9:0.1\n\nnew:7\n"))
    found = predicted(capsys, f"--ckpt={ckpt}", "--input=-", "--k=1")
    assert found[:2] == [["4"], ["1"]]
    assert len(found) == 3
    tagged = zoo.load(ckpt).tag(["4:3 17:0.5"], k=1)[0][0].label  # the same from Python
    whole = predicted(capsys, f"--ckpt={ckpt}", f"--input={tmp_path}/corpus/test.xmc", "--k=1")
    truth = [row.split()[0].split(",") for row in (tmp_path / "corpus" / "test.xmc").read_text().splitlines()[1:]]
    assert tagged == "4"
    assert sum(label in labels for (label,), labels in zip(whole, truth, strict=True)) > 0.9 * len(truth)


def test_names_are_what_predict_reads_and_says(sparse, fit, capsys, tmp_path):
    folder = tmp_path / "corpus"
    (folder / "labels.txt").write_text("".join(f"label {i}\n" for i in range(LABELS)))
    (folder / "features.txt").write_text("".join(f"word{i}\n" for i in range(FEATURES)))
    ckpt = fit(config=sparse) / "checkpoints" / "best.ckpt"
    (tmp_path / "lines.txt").write_text("word2:4 word8:0.3\nword5 word5\n")
    found = predicted(capsys, f"--ckpt={ckpt}", f"--input={tmp_path}/lines.txt", "--k=1")
    assert found == [["label 2"], ["label 5"]]
    beside = predicted(capsys, f"--ckpt={ckpt}", f"--input={folder}/test.xmc", "--k=1")
    assert {label for row in beside for label in row} <= {f"label {i}" for i in range(LABELS)}


def test_a_batch_of_the_tagger_is_one_of_the_datamodule(sparse, fit, tmp_path):
    tagger = zoo.load(fit("--trainer.max_epochs=1", config=sparse) / "checkpoints" / "best.ckpt")
    lines = (tmp_path / "corpus" / "test.xmc").read_text().splitlines()[1:4]
    texts = [line.split(" ", 1)[1] for line in lines]
    ((places, batch),) = tagger.batches(texts, [[] for _ in texts])
    ids, values = tagger.vocabulary.encode_with_values(texts)
    assert batch.values.shape == batch.ids.shape
    for place, row, mask, given in zip(places, batch.ids, batch.mask, batch.values, strict=True):
        assert row[mask].tolist() == ids[place]
        assert torch.allclose(given[mask], torch.tensor(values[place]))
        assert not given[~mask].any()


def test_encoders_of_texts_read_which_features_there_are(sparse, fit, capsys):
    capsys.readouterr()
    fit("--model.backbone=BiLSTM", "--model.backbone.hidden=4", "--trainer.max_epochs=1", config=sparse)
    line_with(capsys.readouterr().err, "BiLSTM", "Bow")  # which reads their values too


def test_sparse_gradients_give_the_same_kind_of_run(sparse, fit, read_metrics):
    given = ["--model.backbone.sparse=true", "--model.optimizer=RowAdam", "--model.optimizer.lr=0.03"]
    assert read_metrics(fit(*given, config=sparse))["metrics"]["P@1"] > 0.9


def test_mistakes_are_told_in_one_line(sparse, fails, tmp_path):
    given = ["fit", f"--config={sparse}", f"--runs={tmp_path}/runs", "--wandb.mode=disabled"]
    options = ["--model.optimizer=RowAdam", "--model.backbone.sparse=false"]
    fails(*given, "--model.backbone.sparse=true", names=options)
    fails(*given, "--model.head=AttentionXML", names=["AttentionXML", "Bow"])
    fails(*given, "--data.tokenizer=bert-base-uncased", names=["bert-base-uncased"])
    fails(*given, "--model.backbone.dim=0", names=["--model.backbone.dim=0"])
    (tmp_path / "corpus" / "test.xmc").write_text("2 20 6\n0 1:1\n0 99:1\n")
    fails(*given, names=["test.xmc", "line 3", "99", "20", "--data.max_bad_rows=1"])


def test_a_line_that_is_no_feature_is_told(sparse, fit, fails, tmp_path):
    ckpt = fit("--trainer.max_epochs=1", config=sparse) / "checkpoints" / "best.ckpt"
    (tmp_path / "lines.txt").write_text("1:1\n1:many\n")
    fails("predict", f"--ckpt={ckpt}", f"--input={tmp_path}/lines.txt", names=["'1:many'", "name:value"])
