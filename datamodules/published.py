"""What papers say of a corpus, to hold what was prepared against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A row of a paper's table of corpora; None where it says nothing."""

    where: str  # the paper and its table
    train: int  # documents
    test: int
    labels: int
    labels_per_document: float | None = None
    documents_per_label: float | None = None  # training documents
    classes: tuple[int, int, int] | None = None  # labels with up to 20, up to 100 and more training documents
    val: int | None = None  # documents; None where the paper names no such split
