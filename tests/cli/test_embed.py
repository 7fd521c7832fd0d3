"""`zoo data embed`, and runs that find its vectors in the cache."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import zoo
from backbones import Transformer
from datamodules.synthetic import SampleCorpus
from zoo.commands.main import main

SAMPLE = SampleCorpus(80, 10, 40)
STAGES = 'stages=[{"name": "fit", "on_enter": ["fit"]}]'


@pytest.fixture
def corpus(tmp_path):
    """The training file of a corpus."""
    lines = ["id,text,labels"]
    lines += [f'{d.id},"{d.text}","{";".join(d.labels)}"' for d in SAMPLE.documents("train")]
    path = tmp_path / "my.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def embed(corpus, bert, capsys):
    def run(*args):
        capsys.readouterr()
        main(["data", "embed", str(corpus), f"--encoder={bert}", "--label_sep=;", "--max_length=16", *args])
        return capsys.readouterr().out

    return run


@pytest.fixture
def fit_svm(fit, corpus, monkeypatch, bert):
    """Fit and test SVMs on document vectors, all of which must be in the cache."""

    def run(backbone, *args):
        monkeypatch.setattr(Transformer, "encode", lambda *_: pytest.fail("a document is encoded again"))
        data = ["--data=TextFiles", f"--data.train={corpus}", "--data.label_sep=;"]
        named = [f"--model.backbone={backbone}", f"--model.backbone.name={bert}"]
        head = ["--model.head=OneVsRestSvm", "--model.head.features=both"]
        return fit(*data, *named, *head, *args, f"--{STAGES}", "--trainer.max_epochs=null")

    return run


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "vectors").iterdir() if path.is_dir())


def test_vectors_are_computed_once(embed, tmp_path):
    first = embed("--windows=2", f"--out={tmp_path / 'out'}")
    assert "documents/s" in first
    kept = folders(tmp_path)
    assert len(kept) == 2  # training and validation documents
    again = embed("--windows=2", "--splits=train,val")
    assert "documents/s" not in again
    assert folders(tmp_path) == kept
    vectors = np.load(tmp_path / "out" / "train.npy")
    assert vectors.shape[1] == 16
    assert f"{len(vectors)} documents" in first
    stored = [np.load(tmp_path / "cache" / "vectors" / name / "vectors.npy") for name in kept]
    assert [np.array_equal(part, vectors) for part in sorted(stored, key=len)] == [False, True]


@pytest.mark.parametrize("words", [False, True])
def test_a_run_finds_them(embed, fit_svm, bert, tmp_path, monkeypatch, words):
    embed(*(["--words", "--max_words_read=500"] if words else []))
    kept = folders(tmp_path)
    assert len(kept) == 2
    if words:
        folder = fit_svm("WordTransformer", "--model.backbone.max_length=16")
    else:
        folder = fit_svm("Transformer", "--model.backbone.pooling=mean", "--data.max_length=16")
    assert folders(tmp_path) == kept
    monkeypatch.undo()
    shutil.rmtree(bert)
    stored = pq.read_table(folder / "predictions.parquet").to_pylist()
    texts = {document.id: document.text for document in SAMPLE.documents("train")}
    tags = zoo.load(folder / "checkpoints" / "best.ckpt", device="cpu").tag([texts[row["id"]] for row in stored], k=5)
    for row, found in zip(stored, tags, strict=True):
        assert [tag.score for tag in found] == pytest.approx(row["scores"][:5], abs=1e-4)


def test_an_encoder_that_is_trained_has_other_vectors(embed, fit, corpus, bert, tmp_path):
    embed()
    kept, read, forward = folders(tmp_path), [], Transformer.encode
    data = ["--data=TextFiles", f"--data.train={corpus}", "--data.label_sep=;", "--data.max_length=16"]
    backbone = ["--model.backbone=Transformer", f"--model.backbone.name={bert}", "--model.backbone.pooling=mean"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Transformer, "encode", lambda self, batch: read.append(self.training) or forward(self, batch))
        fit(*data, *backbone, "--trainer.max_epochs=1")
    assert not all(read)  # validation
    assert folders(tmp_path) == kept


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--splits=training"], ["--splits=training"]),
        (["--max_length=1000"], ["--max_length=1000", 128]),
        (["--windows=0"], ["--windows=0"]),
        (["--out=my.csv"], ["--out=my.csv"]),
        (["--words", "--max_length=1000"], ["--max_length=1000", 128]),
    ],
)
def test_mistakes_are_named(fails, corpus, bert, monkeypatch, args, names):
    monkeypatch.chdir(corpus.parent)
    fails("data", "embed", str(corpus), f"--encoder={bert}", "--label_sep=;", *args, names=names)


def test_a_missing_encoder_is_named(fails, corpus):
    fails("data", "embed", str(corpus), "--encoder=/no/such/folder", names=["/no/such/folder"])
