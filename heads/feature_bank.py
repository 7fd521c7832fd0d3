"""Features of all (document, label) pairs of a corpus, in memory or mapped from disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

from datamodules.batch import Targets

STEP = 2**16  # pairs that are summed over processes, or averaged, at a time


class FeatureBank:
    """A row for each positive pair of the training documents, sorted by label; its size is known from the start.

    Args:
        targets: labels of all training documents.
        num_labels: labels that have features; `targets` may hold others.
        width: of a feature.
        in_memory: bytes up to which it is kept in memory; a larger one is a file in the folder for temporary files,
            which is gone with the process, however that ends.
    """

    def __init__(self, targets: Targets, num_labels: int, width: int, in_memory: float = 2e9) -> None:
        targets = targets.to("cpu").below(num_labels)
        order = targets.indices.argsort(stable=True)
        self.labels = targets.indices[order]  # (pairs,) label of each row
        self.documents = targets.rows[order]  # (pairs,)
        self.support = self.labels.bincount(minlength=num_labels)  # (num_labels,) rows of each label
        self._indptr = targets.indptr
        self._place = order.argsort()  # row of each pair in the order of documents
        self.features = allocate(len(order), width, in_memory)

    def put(self, documents: Tensor, features: Tensor) -> None:
        """Features (pairs, width) of all known labels of some documents, in the order of their targets."""
        documents = documents.cpu()
        first, counts = self._indptr[documents], self._indptr.diff()[documents]
        before = counts.cumsum(0) - counts  # pairs of earlier ones among these documents
        pairs = (first - before).repeat_interleave(counts) + torch.arange(int(counts.sum()))
        self.features[self._place[pairs]] = features.cpu()

    def share(self, total: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """Rows that the processes have filled, each its own, in the banks of all of them."""
        for first in range(0, len(self.features), STEP):
            rows = self.features[first : first + STEP]
            rows.copy_(total(rows.to(device)))

    def prototypes(self) -> Tensor:
        """Mean feature of each label (Eq. 10), (num_labels, width); zeros where it has no document."""
        sums = torch.zeros(len(self.support), self.features.shape[1], dtype=torch.float64)
        for first in range(0, len(self.features), STEP):
            rows = slice(first, first + STEP)
            sums.index_add_(0, self.labels[rows], self.features[rows].double())
        return sums / self.support.clamp_min(1).unsqueeze(1)


def allocate(rows: int, width: int, in_memory: float) -> Tensor:
    """Zeros (rows, width): of memory, or of a file that has no name any more."""
    size = rows * width * 4
    if size <= in_memory:
        return torch.zeros(rows, width)
    handle, path = tempfile.mkstemp(prefix="features-")
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)  # a full disk shows here, not as a crash on writing
        return torch.from_file(path, shared=True, size=rows * width).view(rows, width)
    except OSError as error:
        error.filename = path  # for the person who is told that the disk is full
        raise
    finally:
        os.close(handle)
        os.unlink(path)
