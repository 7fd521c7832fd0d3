"""Blend with a pretrained encoder beside words, through the real command line."""

import shutil

import pyarrow.parquet as pq
import pytest

import zoo
from datamodules.synthetic import SampleCorpus

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 240, num_labels: 20, words_per_document: 30}
trainer: {accelerator: cpu, enable_progress_bar: false, enable_model_summary: false, num_sanity_val_steps: 0}
model:
  backbone: {class_path: WordTransformer, init_args: {name: FOLDER, max_length: 16, windows: 2}}
  head:
    class_path: Blend
    init_args:
      members: {svm: {class_path: OneVsRestSvm, init_args: {features: both}}}
      features: [Scores, {class_path: DenseNeighbours, init_args: {k: 10}}, LabelTexts]
      scores: out_of_fold
      folds: 2
      ranker: {trees: 5, least: 10}
stages:
  - {name: members, on_enter: [svm.fit]}
  - {name: ranker, on_enter: [fit_ranker]}
"""


def test_a_checkpoint_predicts_alone_what_was_tested(fit, bert, tmp_path):
    path = tmp_path / "dense.yaml"
    path.write_text(CONFIG.replace("FOLDER", str(bert)))
    folder = fit(config=path)
    assert len([part for part in (tmp_path / "cache" / "vectors").iterdir() if part.is_dir()]) == 1
    shutil.rmtree(bert)
    stored = pq.read_table(folder / "predictions.parquet").to_pylist()
    texts = {document.id: document.text for document in SampleCorpus(240, 20, 30).documents("test")}
    tags = zoo.load(folder / "checkpoints" / "best.ckpt", device="cpu").tag([texts[row["id"]] for row in stored], k=5)
    assert len(stored) > 40
    for row, found in zip(stored, tags, strict=True):
        assert [tag.score for tag in found] == pytest.approx(row["scores"][:5], abs=1e-4)
