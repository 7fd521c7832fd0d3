"""What a run stores besides its metrics: predictions, labels, and the evidence of a report."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from zoo.analysis import collect_evidence
from zoo.analysis.evidence import Evidence
from zoo.core.run_folder import RunFolder


def read(folder):
    summary = json.loads((folder / "metrics.json").read_text())
    documents = pq.read_table(folder / "predictions.parquet").to_pylist()
    return summary, documents, pq.read_table(folder / "labels.parquet").to_pydict()


def precision(documents, k):
    counted = [row for row in documents if row["truth"]]
    return sum(len(set(row["labels"][:k]) & set(row["truth"])) / k for row in counted) / len(counted)


def test_every_document_is_stored_once_and_metrics_can_be_recomputed(fit):
    folder = fit()
    summary, documents, labels = read(folder)
    assert [row["row"] for row in documents] == list(range(len(documents)))
    assert len({row["id"] for row in documents}) == len(documents) > 0
    for k in (1, 3, 5):
        assert precision(documents, k) == pytest.approx(summary["metrics"][f"P@{k}"], abs=1e-6)
    threshold = summary["metrics"]["threshold"]
    hits = sum(
        score >= threshold and label in row["truth"]
        for row in documents
        for label, score in zip(row["labels"], row["scores"], strict=True)
    )
    chosen = sum(score >= threshold for row in documents for score in row["scores"])
    true = sum(len(row["truth"]) for row in documents)
    assert 2 * hits / (chosen + true) == pytest.approx(summary["metrics"]["microF1@tuned"], abs=1e-6)
    assert len(labels["label"]) == summary["labels"]
    assert summary["peak_memory_mb"]["host"] > 50
    assert (summary["head"], summary["backbone"]) == ("Linear", "BiLSTM")
    shown = Evidence.load(RunFolder(folder))
    assert shown.norms.shape == (sum(labels["known"]),)
    assert shown.examples
    assert not shown.examples[0].attention  # it has none


def test_a_corpus_without_test_documents_stores_validation_documents(fit, tmp_path):
    lines = [{"text": f"word{i % 3} and more", "labels": [f"l{i % 3}"]} for i in range(60)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    folder = fit("--data=TextFiles", f"--data.train={tmp_path / 'train.jsonl'}")
    summary, documents, _ = read(folder)
    assert summary["split"] == "val"
    assert 0 < len(documents) < 60
    assert precision(documents, 1) == pytest.approx(summary["metrics"]["P@1"], abs=1e-6)
    assert Evidence.load(RunFolder(folder)) is not None


def test_an_error_in_pictures_does_not_stop_a_run(fit, monkeypatch, capsys):
    def broken(*args):
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setattr(collect_evidence, "correlations", broken)
    folder = fit()
    assert read(folder)[0]["metrics"]["P@1"] > 0
    assert not (folder / "evidence.npz").exists()
    assert "no such thing" in capsys.readouterr().err
