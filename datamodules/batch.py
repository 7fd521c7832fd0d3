"""Interface between data and models: `Batch`, its `Targets`, and the `LabelSpace`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from zoo.core.metrics import frequency_class


@dataclass
class Movable:
    """Dataclass of tensors that can be moved between devices."""

    def _map(self, method: str, *args: Any, **kwargs: Any) -> Self:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v for k, v in parts.items() if isinstance(v, Tensor | Movable)}
        return replace(self, **{k: getattr(v, method)(*args, **kwargs) for k, v in movable.items()})

    def to(self, *args: Any, **kwargs: Any) -> Self:
        return self._map("to", *args, **kwargs)

    def pin_memory(self) -> Self:
        return self._map("pin_memory")


@dataclass
class Targets(Movable):
    """Positive labels in CSR form: document i has `indices[indptr[i]:indptr[i + 1]]`, ascending and unique.

    Indices from the number of labels on are labels without training documents. Only heads that read label texts can
    predict them, and only with `unseen_labels=score`; otherwise every metric counts them as misses.
    """

    indptr: Tensor  # (batch + 1,) int64
    indices: Tensor  # (positives,) int64

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> Tensor:
        """Number of positive labels of each document, (batch,)."""
        return self.indptr.diff()

    @property
    def rows(self) -> Tensor:
        """Document of each positive, (positives,)."""
        documents = torch.arange(len(self), device=self.indptr.device)
        return documents.repeat_interleave(self.counts, output_size=len(self.indices))  # output_size avoids a GPU sync

    @property
    def places(self) -> Tensor:
        """Index of each positive within its document, from 0, (positives,)."""
        return torch.arange(len(self.indices), device=self.indices.device) - self.indptr[self.rows]

    def below(self, num_labels: int) -> Targets:
        """Remove labels from `num_labels` on."""
        return self.part(0, num_labels)

    def part(self, start: int, stop: int) -> Targets:
        """Select the labels in [start, stop), renumbered from 0."""
        inside = (self.indices >= start) & (self.indices < stop)
        before = torch.cat([self.indptr.new_zeros(1), inside.cumsum(0)])
        return Targets(before[self.indptr], self.indices[inside] - start)

    def take(self, documents: Tensor) -> Targets:
        """Select documents, in the given order; a document may be repeated."""
        counts = self.counts[documents]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shift = (self.indptr[documents] - indptr[:-1]).repeat_interleave(counts)
        return Targets(indptr, self.indices[torch.arange(len(shift), device=shift.device) + shift])

    def dense(self, num_labels: int) -> Tensor:
        """Convert to a 0/1 matrix (batch, num_labels); labels from `num_labels` on are dropped."""
        known = self.below(num_labels)
        out = torch.zeros(len(self), num_labels, device=self.indices.device)
        out[known.rows, known.indices] = 1.0
        return out

    @classmethod
    def from_lists(cls, labels: list[list[int]]) -> Targets:
        rows = [sorted(set(row)) for row in labels]
        indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        return cls(indptr, torch.tensor([label for row in rows for label in row], dtype=torch.long))


@dataclass
class Batch(Movable):
    """Batch of documents as padded token ids.

    Attributes:
        ids: token ids, (batch, length) int64.
        mask: True for real tokens, (batch, length) bool; every document has at least one.
        targets: labels.
        rows: row number of each document in its split, (batch,). Numbers past the end are augmented copies. -1 marks
            a document that was repeated to fill the batch, and that metrics ignore.
        values: feature values, (batch, length); None for texts.
        window: number of tokens of the windows that long documents consist of, one after the other; 0 without windows.
        vectors: document vectors of the backbone, (batch, dim), once it has read the batch.
    """

    ids: Tensor
    mask: Tensor
    targets: Targets
    rows: Tensor
    values: Tensor | None = None
    window: int = 0
    vectors: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, documents: Tensor) -> Batch:
        """Select documents, in the given order."""
        values, vectors = (None if part is None else part[documents] for part in (self.values, self.vectors))
        ids, mask, rows = self.ids[documents], self.mask[documents], self.rows[documents]
        return Batch(ids, mask, self.targets.take(documents), rows, values, self.window, vectors)

    def first(self, length: int | None) -> Batch:
        """Truncate documents to `length` tokens; None keeps all."""
        if length is None or length >= self.ids.shape[1]:
            return self
        values = None if self.values is None else self.values[:, :length]
        return replace(self, ids=self.ids[:, :length], mask=self.mask[:, :length], values=values)


@dataclass
class LabelSpace:
    """Labels and statistics of a corpus that models are built from.

    Labels are sorted by decreasing number of training documents. All fields are plain values, so checkpoints can be
    loaded with `weights_only=True`.

    Attributes:
        names: label names.
        counts: number of training documents of each label.
        num_documents: number of training documents.
        vocab_size: number of token ids.
        pad_id: token id of padding.
        unseen: names of labels without training documents, numbered after `names`.
        reference_counts: counts of `names` and `unseen` in the whole training set, including a validation part that
            was split off; propensities are computed from these.
        reference_documents: number of documents of the whole training set.
        propensity_a: constant A of the propensity model.
        propensity_b: constant B of the propensity model.
        added: number of labels at the end of `names` that were added to a trained model; they are always tail labels.
        texts: descriptions of `names`; empty if there are none.
        parents: labels and their parents, label after label: child, parent, child, parent, ...
        unseen_texts: descriptions of `unseen`, "" for those without one; empty if unseen labels are not scored.
        idf: whether TF-IDF weights tokens by inverse document frequency; features may be weighted already.
    """

    names: list[str]
    counts: list[int]
    num_documents: int
    vocab_size: int
    pad_id: int = 0
    unseen: list[str] = field(default_factory=list)
    reference_counts: list[int] = field(default_factory=list)
    reference_documents: int = 0
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    added: int = 0
    texts: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    idf: bool = True
    unseen_texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reference_counts = self.reference_counts or [*self.counts, *(0 for _ in self.unseen)]
        self.reference_documents = self.reference_documents or self.num_documents

    @property
    def num_labels(self) -> int:
        """Number of labels that a head scores."""
        return len(self.names)

    @property
    def num_scored(self) -> int:
        """Number of labels that a head which reads label texts scores: with `unseen_texts`, unseen ones too."""
        return self.num_all if self.unseen_texts else self.num_labels

    @property
    def scored_counts(self) -> list[int]:
        """Number of training documents of each of the `num_scored` labels."""
        return [*self.counts, *(0 for _ in self.unseen)] if self.unseen_texts else self.counts

    @property
    def labels(self) -> list[str]:
        """Names of known and unseen labels, by index."""
        return [*self.names, *self.unseen]

    @property
    def num_all(self) -> int:
        """Number of labels in targets: known and unseen ones."""
        return len(self.names) + len(self.unseen)

    def grown(self, documents: Mapping[str, int], texts: Mapping[str, str] | None = None) -> LabelSpace:
        """Append labels, given with their numbers of documents and texts; those that were `unseen` no longer are.

        Reference counts may already include these documents, so they become the maximum, not the sum.
        """
        known = dict(zip(self.unseen, self.unseen_texts, strict=False)) | dict(texts or {})
        references = dict(zip([*self.names, *self.unseen], self.reference_counts, strict=True))
        references |= {name: max(count, references.get(name, 0)) for name, count in documents.items()}
        names, unseen = [*self.names, *documents], [name for name in self.unseen if name not in documents]
        return replace(
            self,
            names=names,
            counts=[*self.counts, *documents.values()],
            unseen=unseen,
            reference_counts=[references[name] for name in (*names, *unseen)],
            added=self.added + len(documents),
            texts=[*self.texts, *(known.get(name, "") for name in documents)] if self.texts else [],
            unseen_texts=[known[name] for name in unseen] if self.unseen_texts else [],
        )

    def with_unseen(self) -> LabelSpace:
        """Count the unseen labels among the others if they are scored, with no training documents."""
        if not self.unseen_texts:
            return self
        texts = [*self.texts, *self.unseen_texts] if self.texts else []
        counts = [*self.counts, *(0 for _ in self.unseen)]
        return replace(self, names=self.labels, counts=counts, texts=texts, unseen=[], unseen_texts=[])

    def with_more(self, documents: Mapping[str, int]) -> LabelSpace:
        """Increase the counts of added labels. Other labels keep theirs, which define the head-tail split."""
        counts, references = list(self.counts), list(self.reference_counts)
        for label in range(self.num_labels - self.added, self.num_labels):
            counts[label] += documents.get(self.names[label], 0)
            references[label] = max(references[label], counts[label])
        return replace(self, counts=counts, reference_counts=references)

    def part(self, start: int, stop: int) -> LabelSpace:
        """Select the labels in [start, stop), renumbered from 0; the documents stay the same."""
        return replace(
            self,
            names=self.names[start:stop],
            counts=self.counts[start:stop],
            unseen=[],
            unseen_texts=[],
            reference_counts=self.reference_counts[: self.num_labels][start:stop],
            added=max(0, min(stop, self.num_labels) - max(start, self.num_labels - self.added)),
            texts=self.texts[start:stop],
        )

    def prior(self) -> Tensor:
        """Share of training documents with each label, smoothed to lie in (0, 1), (num_labels,)."""
        share = (torch.tensor(self.counts, dtype=torch.float64) + 0.5) / (self.num_documents + 1)
        return share.float().clamp(1e-9, 1 - 1e-7)  # float32 may round to 1 in a large corpus

    def inverse_propensity(self) -> Tensor:
        """Inverse propensities 1 + C (n + B)^-A (Jain et al. 2016) of known and unseen labels, (num_all,) float64."""
        a, b = self.propensity_a, self.propensity_b
        c = (math.log(max(self.reference_documents, 3)) - 1) * (b + 1) ** a
        weights: Tensor = 1 + c * (torch.tensor(self.reference_counts, dtype=torch.float64) + b) ** -a
        return weights

    def frequency_class(self) -> Tensor:
        """Index into `FREQUENCY_CLASSES` of known and unseen labels, (num_all,)."""
        counts = torch.tensor([*self.counts, *(0 for _ in self.unseen)])
        return torch.from_numpy(frequency_class(counts.numpy()))

    def by_frequency(self) -> Tensor:
        """Labels sorted by decreasing count, ties by number, (num_labels,)."""
        return torch.tensor(self.counts).argsort(descending=True, stable=True)

    def head_by_count(self, threshold: int) -> Tensor:
        """Mask of labels with at least `threshold` training documents (LSFA's split)."""
        return (torch.tensor(self.counts) >= threshold) & self._trained()

    def head_by_tail_size(self, num_tail: int) -> Tensor:
        """Mask of all labels except the `num_tail` rarest (HTTN's split)."""
        return self._first(self.num_labels - self.added - num_tail)

    def head_by_fraction(self, fraction: float) -> Tensor:
        """Mask of the most frequent floor(fraction * labels) (Taug's split)."""
        return self._first(math.floor(fraction * (self.num_labels - self.added) + 1e-9))

    def _trained(self) -> Tensor:
        return torch.arange(self.num_labels) < self.num_labels - self.added

    def _first(self, size: int) -> Tensor:
        order = self.by_frequency()
        order = order[self._trained()[order]]
        mask = torch.zeros(self.num_labels, dtype=torch.bool)
        mask[order[: max(size, 0)]] = True
        return mask
