"""The bank of features against a dictionary, in memory and on disk."""

from __future__ import annotations

import errno
import os
import tempfile

import pytest
import torch

from datamodules.batch import Targets
from heads.feature_bank import FeatureBank
from tests.unit.httn import seeded

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
def test_features_come_to_their_pairs_in_any_order_and_batches(order, size):
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
    monkeypatch.setattr("heads.feature_bank.STEP", 2)
    assert torch.allclose(filled().prototypes().float(), expected)


def test_a_corpus_without_known_labels_has_an_empty_bank():
    bank = FeatureBank(Targets.from_lists([[], [7]]), LABELS, WIDTH)
    bank.put(torch.tensor([1, 0]), torch.zeros(0, WIDTH))
    assert bank.features.shape == (0, WIDTH)
    assert not bank.prototypes().any()


@pytest.mark.parametrize("step", [2, 100])
def test_processes_share_what_each_has_filled(monkeypatch, step):
    monkeypatch.setattr("heads.feature_bank.STEP", step)
    halves = [FeatureBank(Targets.from_lists(TRUTH), LABELS, WIDTH) for _ in range(2)]
    for bank, rows in zip(halves, ([5, 0, 3], [6, 1, 4, 2]), strict=True):
        bank.put(torch.tensor(rows), features_of(rows))
    others = iter(halves[1].features.split(step))
    halves[0].share(lambda value: value + next(others), torch.device("cpu"))
    assert torch.equal(halves[0].features, filled().features)


# --- on disk


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mapped_files(folder):
    return [line for line in open("/proc/self/maps") if f"{folder}/features-" in line]


@orders
def test_on_disk_it_holds_the_same_in_a_file_without_a_name(folder, order):
    bank = filled(order, in_memory=BYTES - 1)
    assert len(mapped_files(folder)) == 1
    assert not list(folder.iterdir())
    assert torch.equal(bank.features, filled(order).features)
    assert torch.equal(bank.prototypes(), filled(order).prototypes())
    del bank
    assert not mapped_files(folder)  # and its space is free again


def test_up_to_its_limit_it_stays_in_memory(folder):
    bank = filled(in_memory=BYTES)
    assert not mapped_files(folder)
    assert bank.features.nbytes == BYTES


def test_a_full_disk_shows_at_once_and_leaves_nothing(folder, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError) as error:
        filled(in_memory=0)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename.startswith(str(folder))
    assert not list(folder.iterdir())


def test_a_large_random_bank_equals_a_loop(folder):
    generator = seeded()
    lists = [torch.randperm(60, generator=generator)[: row % 5].tolist() for row in range(200)]
    targets = Targets.from_lists(lists)
    bank = FeatureBank(targets, 50, 2, in_memory=0)
    known = {(row, label): torch.rand(2) for row, labels in enumerate(lists) for label in labels if label < 50}
    for rows in torch.randperm(200, generator=generator).split(16):
        pairs = [(row, label) for row in rows.tolist() for label in sorted(lists[row]) if label < 50]
        bank.put(rows, torch.stack([known[pair] for pair in pairs]))
    for row, label, got in zip(bank.documents.tolist(), bank.labels.tolist(), bank.features, strict=True):
        assert torch.equal(got, known.pop((row, label)))
    assert not known
