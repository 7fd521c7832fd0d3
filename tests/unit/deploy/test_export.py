"""Exported models give the same labels and scores, for batches of any size and length."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

import zoo
from backbones import Bow, Transformer, Words
from datamodules.prepare.vocabulary import (
    PAD,
    UNK,
    VALUES,
    FeatureVocabulary,
    Vocabulary,
    feature_tokenizer,
    word_tokenizer,
)
from heads import Bonsai, Linear, PrototypeTransfer
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.unit.training.test_tagger import TEXTS, WORDS, make
from zoo.core.errors import UserError
from zoo.core.exporting import exporting
from zoo.deploy.folder import Documents, Export, load_script
from zoo.deploy.graph import trace
from zoo.training.calibration import Calibration
from zoo.training.ranking_model import RankingModel

HARD = ["", "!!", "ban", "CoD, quota-levy", "unknown words only", "cod " * 80]  # 80 words are truncated


def tagger(backbone, vocabulary, head=Linear):
    space = label_space([9, 7, 5, 3, 2], vocab_size=vocabulary.size)
    module = RankingModel(space, backbone, head)
    module.vocabulary = vocabulary
    return zoo.Tagger(module, batch_size=4)


def exported(folder, model, format="onnx", int8=False, texts=(*TEXTS, *HARD)):
    labels = [[tags[0].label] for tags in model.tag(texts, k=1)]
    report = Export(model, format, int8, 5, 8).write(folder, Documents("test", list(texts), labels))
    return report, load_script(folder / "predict.py")


def calibration(model, method):
    steps = [[-4.0, -1.0, 0.0, 2.0], [0.0, 0.2, 0.7, 0.9]] if method == "isotonic" else [[], []]
    cuts = {"global": [0.5], "class": [0.2, 0.5, 0.7], "label": [0.1, 0.9, 0.3, 0.4, 0.2]}
    return Calibration(method, [0.1, 0.9, 0.05, 0.02], 5, "label", "macro-f1", cuts, model.module.space.counts, steps)


def check_same(script, model, texts, name):
    run = script.load(name)
    for size in (1, len(texts)):
        for first in range(0, len(texts), size):
            some = list(texts[first : first + size])
            ranking, _ = model.rank_texts(some, 5)
            scores, labels = run(some)
            assert np.abs(scores - ranking.scores.numpy()).max() < 1e-6
            assert (labels == ranking.labels.numpy()).all()


def test_onnx_with_a_recurrent_backbone(tmp_path):
    """The LSTM is one operation for any length, and reads no padding."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model = make()
    model.calibration = calibration(model, "isotonic")
    report, script = exported(tmp_path, model, int8=True)
    assert report["model.onnx"]["same"] + report["model.onnx"]["tied"] == len(TEXTS) + len(HARD)
    assert {"checkpoint", "model.onnx", "model.int8.onnx"} <= report.keys()
    check_same(script, model, HARD, "model.onnx")
    operations = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert operations.count("LSTM") == 2  # not unrolled
    quantized = [node.op_type for node in onnx.load(tmp_path / "model.int8.onnx").graph.node]
    assert quantized.count("DynamicQuantizeLSTM") == 2
    assert script.predict(script.load(), ["cod"], k=2) == [
        [(tag.label, pytest.approx(tag.score, abs=1e-6)) for tag in model.tag(["cod"], k=2)[0]]
    ]
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert [row["label"] for row in labels] == model.names
    assert [row["threshold"] for row in labels] == model.thresholds.tolist()
    (found,) = script.predict(script.load(), ["cod"], thresholds=True)
    assert [label for label, _ in found] == [tag.label for tag in model.tag(["cod"], threshold="auto")[0]]
    run = subprocess.run(
        [sys.executable, "-P", "predict.py"], cwd=tmp_path, input="cod quota\n", capture_output=True, text=True
    )
    assert [label for label, _ in json.loads(run.stdout)] == [t.label for t in model.tag(["cod quota"])[0]], run.stderr


def test_features_in_a_program_of_torch(tmp_path):
    names = {PAD: 0, UNK: 1, VALUES: 2, "a": 3, "b:c": 4, "d": 5}
    model = tagger(lambda space: Bow(space, 8, blocks=1), FeatureVocabulary(feature_tokenizer(names), 10))
    model.module.backbone.tfidf.idf.fill_(1)
    texts = ["a:2 b:c:0.5", "a", "d:-1 a:0 unknown:3", "", "unknown", "d a b:c:7"]
    report, script = exported(tmp_path, model, "torch", texts=texts)
    assert report["model.pt2"]["same"] == len(texts)
    check_same(script, model, texts, "model.pt2")


def test_calibration_in_export_mode():
    scores, labels = torch.rand(9, 5), torch.arange(5).expand(9, 5)
    for method in ("platt", "isotonic"):
        found = calibration(make(), method)
        expected = found.apply(scores, labels)
        with exporting():
            assert torch.allclose(found.apply(scores, labels), expected, atol=1e-7)


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_windows_of_long_documents_in_export_mode(combine):
    settings = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    settings |= {"max_position_embeddings": 8}
    vocabulary = Vocabulary(word_tokenizer(WORDS), 8, windows=3)
    backbone = partial(Transformer, name="bert", pretrained=False, config=settings, combine=combine)
    model = tagger(backbone, vocabulary)
    expected, _ = model.rank_texts(HARD, 5)
    with exporting():
        found, _ = model.rank_texts(HARD, 5)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)
    assert torch.equal(found.labels, expected.labels)
    with raises(UserError, "`format=torch`"):
        Export(model, "torch", False, 5, 8)


def test_what_is_no_graph_is_named():
    vocabulary = Vocabulary(word_tokenizer(WORDS), 50)
    with raises(UserError, "Bonsai", "zoo predict"):
        trace(tagger(Words, vocabulary, Bonsai).module, 5)
    with raises(UserError, "transfer"):
        trace(make(PrototypeTransfer, tail_labels=2).module, 5)
