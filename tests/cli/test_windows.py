"""Documents beyond `max_length` as windows, from the command line to predictions of the checkpoint alone."""

import pyarrow.parquet as pq
import pytest

import zoo
from datamodules.synthetic import SampleCorpus

WINDOWS = ("--data.max_length=16", "--data.windows=3", "--data.num_documents=90", "--data.words_per_document=40")


def test_predictions_of_the_checkpoint_are_those_of_the_test(fit, bert):
    folder = fit("--model.backbone=Transformer", f"--model.backbone.name={bert}", "--trainer.max_epochs=1", *WINDOWS)
    stored = pq.read_table(folder / "predictions.parquet").to_pylist()
    tagger = zoo.load(folder / "checkpoints" / "best.ckpt", device="cpu")
    sample = SampleCorpus(90, 20, 40)
    texts = {document.id: document.text for document in sample.documents("test")}
    lengths = [len(ids) for ids in tagger.vocabulary.encode(list(texts.values()))]
    assert max(lengths) == 48  # three windows; the rest is truncated
    assert tagger.vocabulary.window == 16
    tags = tagger.tag([texts[row["id"]] for row in stored], k=5)
    for row, found in zip(stored, tags, strict=True):
        assert [tag.score for tag in found] == pytest.approx(row["scores"][:5], abs=1e-5)
        assert tagger.names.index(found[0].label) == row["labels"][0] or found[0].score == pytest.approx(found[1].score)


def test_features_have_no_windows(fails, tiny, tmp_path):
    corpus = tmp_path / "train.xmc"
    corpus.write_text("2 3 2\n0 0:1 1:1\n1 2:1\n")
    given = ["--data=SparseFiles", f"--data.train={corpus}", "--data.windows=2", "--wandb.mode=disabled"]
    fails("fit", f"--config={tiny}", *given, "--model.backbone=Bow", names=["--data.windows=2"])


def test_dropped_words_would_shift_windows(fails, tiny, bert):
    given = ["--model.backbone=Transformer", f"--model.backbone.name={bert}", *WINDOWS, "--wandb.mode=disabled"]
    callback = ["--trainer.callbacks+=TailAugment", "--trainer.callbacks.stage=main"]
    fails("fit", f"--config={tiny}", *given, *callback, names=["keep", "--data.windows=1"])
