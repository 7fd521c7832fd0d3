"""Training examples of each label after augmentation of documents, and of feature-label pairs (LSFA, Figure 1a)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.batch import Targets


class LabelDistribution(NamedTuple):
    """Expected number of training examples of each label, (num_labels,) double."""

    original: Tensor
    sample_level: Tensor  # copies of a tail label's documents, which count for all labels of the documents
    pair_level: Tensor  # features generated for the tail label alone


def label_distribution(targets: Targets, is_tail: Tensor, samples: int) -> LabelDistribution:
    """Augment every tail label with documents `samples` times, in both ways.

    Args:
        targets: labels of all training documents.
        is_tail: mask of the tail labels, (num_labels,).
        samples: copies, each of a random document of the label, or generated features of a tail label (N_a).
    """
    targets = targets.to("cpu").below(len(is_tail))
    rows, labels, is_tail = targets.rows, targets.indices, is_tail.cpu()
    original = labels.bincount(minlength=len(is_tail)).double()
    has_documents = is_tail & (original > 0)
    # A document is copied samples / n times on average for each of its tail labels.
    copies = samples * has_documents[labels] / original[labels]
    of_document = torch.zeros(len(targets), dtype=torch.float64).index_add_(0, rows, copies)
    sample_level = original.index_add(0, labels, of_document[rows])
    return LabelDistribution(original, sample_level, original + samples * has_documents)
