"""New labels from their texts alone, and from documents beside a dual encoder, through the command line."""

import json

import pytest

import zoo
from tests.support.output import line_with
from zoo.commands.main import main

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 150, num_labels: 20, words_per_document: 40, batch_size: 16, unseen_labels: score}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  backbone: {class_path: Bow, init_args: {dim: 16, dropout: 0.0, min_documents: 1}}
  head: {class_path: DualEncoder, init_args: {hidden: 16, random_negatives: 4, hard_negatives: 2}}
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
stages:
  - name: texts
    epochs: 2
    on_enter: [read_label_texts]
    each_epoch: [own_negatives]
    trainable: ["backbone.*", "head.project*"]
  - {name: rows, epochs: 1, on_enter: [start_rows], trainable: ["head.rows.*"]}
  - {name: calibrate, on_enter: [calibrate]}
wandb: {mode: disabled}
"""


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dual")
    (folder / "tiny.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        main(["fit", "--config", str(folder / "tiny.yaml"), "--runs", str(folder)])
    (found,) = folder.glob("tiny/*/checkpoints/best.ckpt")
    return found


def test_labels_from_texts_alone(best, tmp_path, capsys):
    known = zoo.load(best).names

    out = tmp_path / "more.ckpt"
    (tmp_path / "labels.json").write_text(json.dumps({"Z1": known[0], known[1]: "known already"}))
    main(["add-labels", "--ckpt", str(best), "--texts", str(tmp_path / "labels.json"), "--out", str(out)])
    assert "1 added" in line_with(capsys.readouterr().out, "labels")
    tagger, before = zoo.load(out), zoo.load(best)
    assert tagger.names == [*known, "Z1"]
    (found,), (old,) = (model.tag([known[0]], k=len(known) + 1) for model in (tagger, before))
    assert "Z1" in [tag.label for tag in found]
    assert [tag.label for tag in found if tag.label != "Z1"] == [tag.label for tag in old][: len(found) - 1]
    tagger.add_labels([("a text", ["Z3"])], texts={"Z4": known[2]})
    assert tagger.names[-2:] == ["Z3", "Z4"]


def test_mistakes_end_in_one_line(best, tmp_path, capsys):
    out = tmp_path / "more.ckpt"
    (tmp_path / "labels.json").write_text(json.dumps({"Z2": "qqq zzz"}))
    for options, named in ((["--texts", str(tmp_path / "labels.json")], "Z2"), ([], "--texts")):
        with pytest.raises(SystemExit) as ended:
            main(["add-labels", "--ckpt", str(best), "--out", str(out), *options])
        assert ended.value.code == 2
        assert named in capsys.readouterr().err


def test_a_checkpoint_with_added_labels_is_trained_further(best, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    known, out = zoo.load(best).names, tmp_path / "more.ckpt"
    zoo.load(best).add_labels(texts={"new": known[0]}).save(out)
    for split in ("train", "val", "test"):
        rows = [{"text": f"{name} {i}", "labels": [name, "new"]} for i, name in enumerate(known[:6])]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ["--data=TextFiles", *(f"--data.{s}={tmp_path / s}.jsonl" for s in ("train", "val", "test"))]
    config = next(best.parents[3].glob("tiny.yaml"))
    given = ["fit", "--config", str(config), "--runs", str(tmp_path), "--name=further", "--from_stage=rows", *data]
    main([*given, f"--ckpt={out}"])
    (further,) = tmp_path.glob("further/*/checkpoints/best.ckpt")
    tagger = zoo.load(further)
    assert tagger.names == [*known, "new"]
    assert tagger.tag(["anything"])[0]
    with pytest.raises(SystemExit):
        main([*given, f"--ckpt={best}"])  # its labels are others
