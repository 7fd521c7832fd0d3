"""The bank of features against a dictionary, in memory and on disk."""

import errno
import os
import tempfile

import pytest
import torch

from datamodules.batch import Targets
from heads.augment.feature_bank import FeatureBank

# without labels, of labels that training never saw (5 and 9), with all of them
TRUTH = [[1, 3], [], [0], [3, 5, 9], [9], [0, 1, 2, 3], [3]]
LABELS, WIDTH = 5, 3
BYTES = 9 * WIDTH * 4  # of nine pairs
orders = pytest.mark.parametrize("order", [range(7), [5, 0, 3, 6, 1, 4, 2]], ids=["in-order", "shuffled"])


def feature(document, label):
    return torch.tensor([document, label, document * label + 0.5])


def features_of(rows):
    found = [feature(row, label) for row in rows for label in TRUTH[row] if label < LABELS]
    return torch.stack(found) if found else torch.zeros(0, WIDTH)


def filled(order=range(7), size=3, **settings):
    bank = FeatureBank(Targets.from_lists(TRUTH), LABELS, WIDTH, **settings)
    for rows in torch.tensor(list(order)).split(size):
        bank.put(rows, features_of(rows.tolist()))
    return bank


@orders
@pytest.mark.parametrize("size", [1, 3, 7])
def test_features_are_stored_with_their_pairs(order, size):
    bank = filled(order, size)
    pairs = sorted((label, row) for row, labels in enumerate(TRUTH) for label in labels if label < LABELS)
    assert list(zip(bank.labels.tolist(), bank.documents.tolist(), strict=True)) == pairs
    assert torch.equal(bank.features, torch.stack([feature(row, label) for label, row in pairs]))
    assert bank.support.tolist() == [2, 2, 1, 4, 0]


def test_prototypes_are_means_by_label(monkeypatch):
    expected = torch.zeros(LABELS, WIDTH)
    for label in range(LABELS - 1):
        own = [feature(row, label) for row, labels in enumerate(TRUTH) if label in labels]
        expected[label] = torch.stack(own).mean(0)
    assert torch.allclose(filled().prototypes().float(), expected)
    monkeypatch.setattr("heads.augment.feature_bank.STEP", 2)
    assert torch.allclose(filled().prototypes().float(), expected)


def test_a_corpus_without_known_labels_has_an_empty_bank():
    bank = FeatureBank(Targets.from_lists([[], [7]]), LABELS, WIDTH)
    bank.put(torch.tensor([1, 0]), torch.zeros(0, WIDTH))
    assert bank.features.shape == (0, WIDTH)
    assert not bank.prototypes().any()


@pytest.mark.parametrize("step", [2, 100])
def test_processes_exchange_their_features(monkeypatch, step):
    monkeypatch.setattr("heads.augment.feature_bank.STEP", step)
    halves = [FeatureBank(Targets.from_lists(TRUTH), LABELS, WIDTH) for _ in range(2)]
    for bank, rows in zip(halves, ([5, 0, 3], [6, 1, 4, 2]), strict=True):
        bank.put(torch.tensor(rows), features_of(rows))
    others = iter(halves[1].features.split(step))
    halves[0].share(lambda value: value + next(others), torch.device("cpu"))
    assert torch.equal(halves[0].features, filled().features)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mapped_files(folder):
    return [line for line in open("/proc/self/maps") if f"{folder}/features-" in line]


@orders
def test_a_bank_on_disk_is_an_unnamed_file(folder, order):
    bank = filled(order, in_memory=BYTES - 1)
    assert len(mapped_files(folder)) == 1
    assert not list(folder.iterdir())
    assert torch.equal(bank.features, filled(order).features)
    assert torch.equal(bank.prototypes(), filled(order).prototypes())
    del bank
    assert not mapped_files(folder)  # and its space is free again


def test_a_bank_below_the_limit_stays_in_memory(folder):
    bank = filled(in_memory=BYTES)
    assert not mapped_files(folder)
    assert bank.features.nbytes == BYTES


def test_a_full_disk_is_reported_at_once(folder, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError) as error:
        filled(in_memory=0)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename.startswith(str(folder))
    assert not list(folder.iterdir())
