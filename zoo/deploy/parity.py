"""Whether an exported model gives the same labels and scores as the checkpoint, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.core.errors import UserError

TOP = 5  # labels that must be the same
TOLERANCE = 1e-4  # of scores
TIE = 1e-6  # labels whose scores differ by less may change places
LOSS = 0.005  # of P@1, by int8
ROUNDS = 3  # of timing; the best counts

Table = NDArray[Any]
Run = Callable[[Sequence[str]], Sequence[Table]]  # texts to scores and labels, (texts, k)


@dataclass(frozen=True)
class Measured:
    """Rankings of the documents by one form of a model.

    Attributes:
        scores: (documents, k) best first.
        labels: (documents, k) label numbers; -1 for none.
        speed: documents a second, from text to labels.
    """

    scores: Table
    labels: Table
    speed: float


@dataclass(frozen=True)
class Parity:
    """How an exported model differs from its checkpoint.

    Attributes:
        documents: number of documents.
        same: documents with the same top 5 in the same order.
        tied: documents whose top 5 differ only in the order of labels with equal scores.
        difference: largest difference of a score in the top 5.
        precision: P@1 of the exported model; NaN without labelled documents.
        reference: P@1 of the checkpoint.
        speed: documents a second.
    """

    documents: int
    same: int
    tied: int
    difference: float
    precision: float
    reference: float
    speed: float

    def check_same(self, name: str) -> None:
        """Raise an error unless labels and scores are those of the checkpoint."""
        differing = self.documents - self.same - self.tied
        if differing or not self.difference <= TOLERANCE:
            raise UserError(
                f"{name} does not have the scores of the checkpoint: another top {TOP} for {differing:,} of "
                f"{self.documents:,} documents, scores differ by up to {self.difference:.2g}; nothing was written"
            )

    def check_loss(self, name: str) -> None:
        """Raise an error if P@1 is lower than that of the checkpoint by more than half a point."""
        if not self.reference > 0:
            raise UserError(f"{name} can only be checked with labelled documents: give them with `input`")
        if self.reference - self.precision > LOSS:
            raise UserError(
                f"{name} loses {100 * (self.reference - self.precision):.2f} points of P@1, more than "
                f"{100 * LOSS:g}: leave out `int8`; nothing was written"
            )


def measure(run: Run, texts: Sequence[str], batch_size: int, advance: Callable[[float], None]) -> Measured:
    """Rank all texts in batches of similar length, and time it."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    seconds = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = [run([texts[i] for i in rows]) for rows in batches]
        seconds = min(seconds, time.perf_counter() - start)
        advance(1)
    place = np.argsort(order)
    scores, labels = (np.concatenate(parts)[place] for parts in zip(*found, strict=True))
    return Measured(scores, labels, len(texts) / seconds)


def compare(exported: Measured, reference: Measured, truth: Sequence[set[int]]) -> Parity:
    """Compare the top 5 of each document; `truth` are its label numbers."""
    ours, theirs = exported.labels[:, :TOP], reference.labels[:, :TOP]
    same = (ours == theirs).all(1)
    tied = np.zeros_like(same)
    for row in (~same).nonzero()[0]:
        known = dict(zip(reference.labels[row].tolist(), reference.scores[row].tolist(), strict=True))
        gaps = [
            abs(known.get(a, np.inf) - known[b]) for a, b in zip(ours[row].tolist(), theirs[row].tolist(), strict=True)
        ]
        tied[row] = max(gaps) <= TIE
    difference = np.abs(exported.scores[:, :TOP].astype(np.float64) - reference.scores[:, :TOP])
    largest = float(np.nan_to_num(difference, nan=np.inf).max())
    first, other = (precision(one.labels, truth) for one in (exported, reference))
    return Parity(len(same), int(same.sum()), int(tied.sum()), largest, first, other, exported.speed)


def precision(labels: Table, truth: Sequence[set[int]]) -> float:
    """P@1 of the documents with labels; NaN if there are none."""
    hits = [int(found) in true for found, true in zip(labels[:, 0], truth, strict=True) if true]
    return float(np.mean(hits)) if hits else float("nan")
