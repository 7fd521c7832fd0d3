"""Named corpora: their folders, sources and published sizes; claims about those in $ZOO_DATA."""

import bz2
import os
from pathlib import Path

import pytest

import datamodules
from datamodules import Aapd, Amazon670K, EurLex, EurLex4K, Rcv1, Reuters
from datamodules.base import CorpusMissingError
from datamodules.corpora.named import NamedCorpus
from datamodules.corpora.sources import DownloadedFile
from tests.support.errors import raises
from zoo.core.errors import UserError

NAMED = [kind for kind in vars(datamodules).values() if isinstance(kind, type) and issubclass(kind, NamedCorpus)]
ROWS = [pytest.param(row, id=f"{kind.folder} {row.where}") for kind in NAMED for row in kind.published]


@pytest.mark.parametrize("kind", NAMED)
def test_missing_corpora_name_their_folder(kind, tmp_path, clean_environment):
    assert [other.folder for other in NAMED].count(kind.folder) == 1
    with raises(CorpusMissingError, f"$ZOO_DATA/{kind.folder}"):
        kind(download=False, cache_dir=str(tmp_path)).find_corpus()
    settings = kind().settings
    assert (settings.max_length, settings.max_words) == (500, 500_000)


@pytest.mark.parametrize("kind", NAMED)
def test_files_of_a_corpus_have_distinct_paths(kind):
    files = [origin for source in kind.sources for origin in source if isinstance(origin, DownloadedFile)]
    assert all(file.url.startswith("https://") for file in files)
    assert len({file.path(Path()) for file in files}) == len(files)


@pytest.mark.parametrize("row", ROWS)
def test_published_numbers_are_consistent(row):
    if row.classes:
        assert sum(row.classes) == row.labels
    if row.labels_per_document and row.documents_per_label:
        expected = row.train * row.labels_per_document / row.labels
        assert row.documents_per_label == pytest.approx(expected, rel=0.025)


def test_propensity_constants_default_to_those_of_the_corpus():
    constants = {"propensity_a": 0.6, "propensity_b": 2.6}
    assert Amazon670K().propensity == constants
    assert Amazon670K(propensity_a=0.5).propensity == constants | {"propensity_a": 0.5}
    assert EurLex4K().propensity == {"propensity_a": 0.55, "propensity_b": 1.5}


def test_compressed_lines_are_read_from_a_folder(tmp_path):
    text = "".join(f"{2286 + i}\tE11 ECAT M1{i % 2}\trecov recov excit\n" for i in range(30))
    (tmp_path / "train.txt.bz2").write_bytes(bz2.compress(text.encode()))
    space = Rcv1(root=str(tmp_path), cache_dir=str(tmp_path / "cache")).space
    assert set(space.names) == {"E11", "ECAT", "M10", "M11"}


def put_aapd(folder, splits=("train", "val", "test"), size=20):
    for split in splits:
        (folder / f"text_{split}").write_text("".join(f"we propose {split} {i}\n" for i in range(size)))
        (folder / f"label_{split}").write_text("".join(f"cs.it math.it cs.{i % 3}\n" for i in range(size)))


def aapd(folder, **settings):
    return Aapd(root=str(folder), cache_dir=str(folder / "cache"), **settings)


def test_aapd_has_texts_and_labels_in_separate_files(tmp_path, clean_environment):
    put_aapd(tmp_path)
    data = aapd(tmp_path)
    assert set(data.space.names) == {"cs.it", "math.it", "cs.0", "cs.1", "cs.2"}
    assert [len(data.prepared.rows(split)) for split in ("train", "val", "test")] == [20, 20, 20]
    (tmp_path / "label_test").write_text("other\n" * 20)
    assert aapd(tmp_path).prepared.folder != data.prepared.folder


def test_aapd_needs_training_documents(tmp_path, clean_environment):
    put_aapd(tmp_path, ("val", "test"))
    with raises(UserError, "`root=", "github.com/lancopku/SGM", "text_train"):
        aapd(tmp_path).find_corpus()
    put_aapd(tmp_path, ("train",))
    (tmp_path / "label_val").unlink()
    assert set(aapd(tmp_path).find_corpus().sources) == {"train", "test"}


def test_validation_documents_can_be_merged_into_training(tmp_path, clean_environment):
    put_aapd(tmp_path)
    data = aapd(tmp_path, merge_val=True, val_fraction=0.25)
    train, val, test = (len(data.prepared.rows(split)) for split in ("train", "val", "test"))
    assert (train + val, data.space.reference_documents, test) == (40, 40, 20)
    assert 0 < val < 20
    assert data.prepared.folder != aapd(tmp_path, val_fraction=0.25).prepared.folder
    differences = data.deviations()
    assert [line for line in differences if "HTTN" in line and "54,840 training documents" in line]
    assert not [line for line in differences if "validation" in line]
    (tmp_path / "text_val").unlink()
    assert aapd(tmp_path, merge_val=True).space.reference_documents == 20


def test_aapd_files_must_have_equal_lengths(tmp_path, clean_environment):
    put_aapd(tmp_path)
    (tmp_path / "label_train").write_text("cs.it\n" * 19)
    with raises(UserError, "line 20", "text_train", "label_train"):
        _ = aapd(tmp_path).prepared
    assert len(aapd(tmp_path, max_bad_rows=1).prepared.rows("train")) == 19


def prepared(kind, tmp_path):
    if not (Path(os.environ.get("ZOO_DATA", "/nowhere")) / kind.folder).is_dir():
        pytest.skip(f"$ZOO_DATA has no {kind.folder}")
    return kind(cache_dir=str(tmp_path), batch_size=32)


@pytest.mark.corpus
@pytest.mark.parametrize(("kind", "train", "labels"), [(Reuters, 7770, 90), (EurLex, 45000, 4108)])
def test_published_sizes_and_little_padding(kind, train, labels, tmp_path):
    data = prepared(kind, tmp_path)
    assert data.space.reference_documents == train
    assert sum(count > 0 for count in data.space.reference_counts) == labels
    loader = data.train_dataloader()
    batches = [loader.dataset.lengths[rows] for rows in loader.sampler]
    assert sum(b.sum() for b in batches) > 0.9 * sum(len(b) * b.max() for b in batches)
