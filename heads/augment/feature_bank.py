"""Features of all positive (document, label) pairs of a corpus, in memory or memory-mapped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

from datamodules.batch import Targets

STEP = 2**16  # pairs per all-reduce, or per step of an average


class FeatureBank:
    """One feature per positive pair of the training documents, sorted by label.

    Args:
        targets: labels of all training documents.
        num_labels: number of labels with features; `targets` may have others.
        width: width of a feature.
        in_memory: largest size in bytes that is kept in memory. Larger banks are mapped from an unlinked temporary
            file, which disappears with the process.
    """

    def __init__(self, targets: Targets, num_labels: int, width: int, in_memory: float = 2e9) -> None:
        targets = targets.to("cpu").below(num_labels)
        order = targets.indices.argsort(stable=True)
        self.labels = targets.indices[order]  # (pairs,) label of each row
        self.documents = targets.rows[order]  # (pairs,)
        self.support = self.labels.bincount(minlength=num_labels)  # (num_labels,) pairs of each label
        self._rows = Targets(targets.indptr, order.argsort())  # row of each pair, by document
        self.features = allocate(len(order), width, in_memory)

    def put(self, documents: Tensor, features: Tensor) -> None:
        """Store the features (pairs, width) of some documents' labels, in the order of their targets."""
        self.features[self._rows.take(documents.cpu()).indices] = features.cpu()

    def share(self, total: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """All-reduce the rows: each process has filled its own."""
        for first in range(0, len(self.features), STEP):
            rows = self.features[first : first + STEP]
            rows.copy_(total(rows.to(device)))

    def prototypes(self) -> Tensor:
        """Mean feature of each label (Eq. 10), (num_labels, width); zeros without documents."""
        sums = torch.zeros(len(self.support), self.features.shape[1], dtype=torch.float64)
        for first in range(0, len(self.features), STEP):
            rows = slice(first, first + STEP)
            sums.index_add_(0, self.labels[rows], self.features[rows].double())
        return sums / self.support.clamp_min(1).unsqueeze(1)


def allocate(rows: int, width: int, in_memory: float) -> Tensor:
    """Zeros (rows, width), in memory or in an unlinked file."""
    size = rows * width * 4
    if size <= in_memory:
        return torch.zeros(rows, width)
    handle, path = tempfile.mkstemp(prefix="features-")
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)  # fails here on a full disk, not with a crash on writing
        return torch.from_file(path, shared=True, size=rows * width).view(rows, width)
    except OSError as error:
        error.filename = path  # for the error message
        raise
    finally:
        os.close(handle)
        os.unlink(path)
