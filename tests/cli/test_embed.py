"""`zoo data embed`, and runs that find its vectors in the cache."""

import numpy as np
import pytest

from backbones import Transformer
from zoo.commands.main import main

SIZES = ("--data.num_documents=80", "--data.words_per_document=40", "--data.batch_size=16")
STAGES = 'stages=[{"name": "fit", "on_enter": ["fit"]}]'


@pytest.fixture
def corpus(tmp_path):
    """The training file of a corpus."""
    from datamodules.synthetic import SampleCorpus

    lines = ["text,labels"]
    for document in SampleCorpus(80, 10, 40).documents("train"):
        lines.append(f'"{document.text}","{";".join(document.labels)}"')
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
    """Fit SVMs on document vectors; returns the numbers of documents that the encoder has read in evaluation mode."""
    read = []

    def run(backbone, *args):
        forward = Transformer.encode
        monkeypatch.setattr(Transformer, "encode", lambda self, batch: read.append(len(batch)) or forward(self, batch))
        data = ["--data=TextFiles", f"--data.train={corpus}", "--data.label_sep=;"]
        named = [f"--model.backbone={backbone}", f"--model.backbone.name={bert}"]
        head = ["--model.head=OneVsRestSvm", "--model.head.features=both"]
        fit(*data, *named, *head, *args, f"--{STAGES}", "--trainer.max_epochs=null")
        return sum(read)

    return run


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "vectors").iterdir() if path.is_dir())


def test_vectors_are_computed_once(embed, tmp_path):
    first = embed("--windows=2", f"--out={tmp_path / 'out'}")
    assert "documents/s" in first
    kept = folders(tmp_path)
    assert len(kept) == 2  # training and validation documents
    again = embed("--windows=2")
    assert "documents/s" not in again
    assert folders(tmp_path) == kept
    vectors = np.load(tmp_path / "out" / "train.npy")
    assert vectors.shape[1] == 16
    assert f"{len(vectors)} documents" in first
    stored = [np.load(tmp_path / "cache" / "vectors" / name / "vectors.npy") for name in kept]
    assert [np.array_equal(part, vectors) for part in sorted(stored, key=len)] == [False, True]


@pytest.mark.parametrize("words", [False, True])
def test_a_run_finds_them(embed, fit_svm, tmp_path, words):
    embed("--splits=[train]", *(["--words", "--max_words_read=500"] if words else []))
    kept = folders(tmp_path)
    assert len(kept) == 1
    if words:
        read = fit_svm("WordTransformer", "--model.backbone.max_length=16")
    else:
        read = fit_svm("Transformer", "--model.backbone.pooling=mean", "--data.max_length=16")
    assert folders(tmp_path) == kept
    train = len(np.load(tmp_path / "cache" / "vectors" / kept[0] / "vectors.npy"))
    assert 0 < read < train  # only validation documents


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--splits=[training]"], ["--splits=training"]),
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
