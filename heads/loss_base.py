"""Base class of losses: what a head calls, and what a loss implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from datamodules.batch import LabelSpace, Targets

Labels = Tensor | slice  # label of each column, (n,), or of each pair, (docs, n): an index into per-label tensors
BOUND = 16.0  # bound of `start_logits`
BISECTIONS = 30


class Loss(nn.Module, ABC):
    """Base class of losses; implement `pairs`.

    A head calls the loss in one of three ways: with all logits (`forward`), with a block of documents and labels
    (`over_block`), or with the candidate labels of each document (`over_candidates`). All of them reduce to `pairs`
    and sum over labels. Buffers with a row per label come from the label space and are not saved in checkpoints.
    """

    def __init__(self, space: LabelSpace | None = None) -> None:
        super().__init__()

    @abstractmethod
    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        """Loss of each pair, (docs, n).

        Args:
            logits: (docs, n) in single precision.
            truth: (docs, n) bool, True on positive pairs.
            labels: which labels the columns, or the pairs, are: `self.buffer[labels]` broadcasts to `logits`.
            documents: (docs,) values of `document_values` for these rows; None if the loss has none.
        """

    def document_values(self, targets: Targets) -> Tensor | None:
        """One value per document that depends on all its labels, (docs,); None if the loss needs none."""
        return None

    def start_logits(self, space: LabelSpace) -> Tensor:
        """Constant logit of each label with the least expected loss, (num_labels,): where a bias should start.

        For BCE it is the logit of the label's share of the documents. Found by bisection on the derivative, within
        +-BOUND.
        """
        prior, labels = space.prior().double(), slice(0, space.num_labels)
        low, high = prior.new_full(prior.shape, -BOUND), prior.new_full(prior.shape, BOUND)
        for _ in range(BISECTIONS):
            logits = ((low + high) / 2).unsqueeze(0).requires_grad_()
            with torch.enable_grad():
                positive, negative = (
                    self.pairs(logits, torch.full_like(logits, truth, dtype=torch.bool), labels, None)
                    for truth in (True, False)
                )
                (slope,) = torch.autograd.grad((prior * positive + (1 - prior) * negative).sum(), logits)
            falls = slope[0] < 0
            low, high = torch.where(falls, logits[0], low).detach(), torch.where(falls, high, logits[0]).detach()
        return ((low + high) / 2).float()

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        """Sum over all labels, mean over documents; `logits` are (docs, num_labels)."""
        labels, documents = slice(0, logits.shape[1]), self.document_values(targets)
        return self.over_block(logits.float(), targets.rows, targets.indices, labels, None, documents) / len(logits)

    def over_block(
        self,
        logits: Tensor,
        rows: Tensor,
        columns: Tensor,
        labels: Labels,
        weight: Tensor | None,
        documents: Tensor | None,
    ) -> Tensor:
        """Sum over a block of documents and labels.

        Args:
            logits: (docs, n) in single precision.
            rows: (positives,) row of each positive pair, relative to the block; pairs outside the block are ignored.
            columns: (positives,) column of each positive pair, likewise.
            labels: label of each column.
            weight: (n,) weight of each column, such as the inverse sampling rate of negatives.
            documents: as in `pairs`.
        """
        rows, columns, inside = clamp_pairs(logits, rows, columns)
        # Pairs outside the block add 0 to a cell at its border: no boolean indexing, so no GPU sync.
        truth = torch.zeros_like(logits).index_put_((rows, columns), inside.to(logits.dtype), accumulate=True) > 0
        values = self.pairs(logits, truth, labels, documents)
        return (values if weight is None else values * weight).sum()

    def over_candidates(
        self, logits: Tensor, truth: Tensor, labels: Labels, real: Tensor, documents: Tensor | None
    ) -> Tensor:
        """Sum over candidate labels, (docs, n); `real` is False on padding, whose labels may be any."""
        return (self.pairs(logits, truth, labels, documents) * real).sum()


MakeLoss = Callable[[LabelSpace], Loss]


def clamp_pairs(logits: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns moved into the block, and which of them were inside it."""
    docs, labels = logits.shape
    inside = (rows >= 0) & (rows < docs) & (columns >= 0) & (columns < labels)
    return rows.clamp(0, docs - 1), columns.clamp(0, labels - 1), inside
