"""LSFA, Figure 1a: label counts after augmentation of documents and of pairs."""

import torch

from datamodules.batch import Targets
from heads.augment.label_distribution import label_distribution
from tests.support.httn import corpus


def test_distributions_equal_a_loop():
    _, targets, _ = corpus(counts=(30, 20, 12, 3, 1, 0), unseen=1)
    is_tail = torch.tensor([False, False, False, True, True, True])
    lists = [[j for j in part.tolist() if j < 6] for part in targets.indices.split(targets.counts.tolist())]
    original, sample, pair = ([sum(j in row for row in lists) for j in range(6)] for _ in range(3))
    for label in (3, 4):
        own = [row for row in lists if label in row]
        for row in own:  # each of its documents is as likely as another
            for j in row:
                sample[j] += 10 / len(own)
        pair[label] += 10
    found = label_distribution(targets, is_tail, 10)
    for got, expected in zip(found, (original, sample, pair), strict=True):
        assert torch.allclose(got, torch.tensor(expected).double())


def test_copies_of_documents_raise_frequent_labels_and_pairs_do_not():
    targets = Targets.from_lists([[0], [0], [0], [0, 1], [0, 2], [0, 2]])
    found = label_distribution(targets, torch.tensor([False, True, True]), 10)
    assert found.original.tolist() == [6, 1, 2]
    assert found.sample_level.tolist() == [26, 11, 12]
    assert found.pair_level.tolist() == [6, 11, 12]
