"""Co-occurrence of labels, as a sparse matrix and as a table of fixed size."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, lil_array
from torch import Tensor, nn

from datamodules.batch import Targets
from zoo.core.errors import UserError


def co_occurrence(targets: Targets, num_labels: int) -> csr_array:
    """Number of documents with both labels, Y^T Y (num_labels, num_labels); the diagonal counts a label's documents."""
    known = targets.below(num_labels)
    parts = np.ones(len(known.indices)), known.indices.cpu().numpy(), known.indptr.cpu().numpy()
    labels = csr_array(parts, shape=(len(known), num_labels))
    return csr_array(labels.T @ labels)


def given_second(counts: csr_array) -> csr_array:
    """P(l_i | l_j) in row i and column j: the share of the documents of j that have i; 1 on the diagonal."""
    documents = np.maximum(counts.diagonal(), 1)
    shares = lil_array(counts.multiply(1 / documents[None, :]))
    shares.setdiag(1)  # also of labels without documents
    return csr_array(shares)


class LabelGraph(nn.Module):
    """Weighted edges from each label to its strongest neighbours.

    The table has the same size for every corpus, so that it can be part of a checkpoint. Before `fill`, each label has
    only itself.

    Args:
        num_labels: number of labels.
        width: number of neighbours, itself included, that a label can have; weaker ones are dropped.
    """

    neighbours: Tensor  # (num_labels, width) int64, the label itself where there are fewer
    weights: Tensor  # (num_labels, width), zero where there are fewer
    filled: Tensor  # () bool

    def __init__(self, num_labels: int, width: int) -> None:
        super().__init__()
        own = torch.arange(num_labels).unsqueeze(1)
        self.register_buffer("neighbours", own.repeat(1, min(width, num_labels)))
        self.register_buffer("weights", torch.zeros(self.neighbours.shape))
        self.register_buffer("filled", torch.tensor(False))
        self.weights[:, 0] = 1

    def check_indices(self) -> None:
        if int(self.neighbours.min()) < 0 or int(self.neighbours.max()) >= len(self.neighbours):
            raise UserError("the label graph of the checkpoint is damaged: it has edges to labels that do not exist")

    @torch.no_grad()
    def fill(self, matrix: csr_array) -> None:
        """Take the diagonal and the largest entries of each row of a matrix over labels, the lower label of ties."""
        entries = matrix.tocoo()
        other = entries.row != entries.col
        order = np.lexsort((entries.col, -entries.data, other, entries.row))
        rows, columns, values = (part[order] for part in (entries.row, entries.col, entries.data))
        first = np.searchsorted(rows, np.arange(len(self.weights)))
        place = np.arange(len(rows)) - first[rows]
        kept = place < self.weights.shape[1]
        self.neighbours.copy_(torch.arange(len(self.weights)).unsqueeze(1))
        self.weights.zero_()
        at = tuple(torch.as_tensor(part[kept], dtype=torch.long) for part in (rows, place))
        self.neighbours[at] = torch.as_tensor(columns[kept], dtype=torch.long).to(self.neighbours.device)
        self.weights[at] = torch.as_tensor(values[kept]).to(self.weights)
        self.filled.fill_(True)


def mix(vectors: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """sum_k weights[i, k] vectors[neighbours[i, k]], (n, width), without a dense matrix over labels."""
    return F.embedding_bag(neighbours, vectors.float(), per_sample_weights=weights.float(), mode="sum")
