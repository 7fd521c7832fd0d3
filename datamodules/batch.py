"""What flows from data to models: `Batch`, its `Targets`, and the `LabelSpace` that both sides agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

FREQUENCY_CLASSES = ("few", "medium", "many")  # up to 20 training documents, up to 100, more


@dataclass
class Movable:
    """A dataclass of tensors that moves between devices as a whole."""

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
    """Positive labels in CSR form: document i owns `indices[indptr[i]:indptr[i + 1]]`, ascending and unique.

    An index at or past the number of labels stands for a label that training never saw: no head can
    predict it, and every metric counts it as a miss.
    """

    indptr: Tensor  # (batch + 1,) int64
    indices: Tensor  # (positives,) int64

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> Tensor:
        """Number of labels of each document, (batch,)."""
        return self.indptr.diff()

    @property
    def rows(self) -> Tensor:
        """The document of each positive, (positives,)."""
        documents = torch.arange(len(self), device=self.indptr.device)
        return documents.repeat_interleave(self.counts, output_size=len(self.indices))  # its size known: no GPU sync

    def below(self, num_labels: int) -> Targets:
        """Without the labels from `num_labels` on."""
        return self.part(0, num_labels)

    def part(self, start: int, stop: int) -> Targets:
        """The labels from `start` to before `stop` alone, numbered from 0."""
        inside = (self.indices >= start) & (self.indices < stop)
        before = torch.cat([self.indptr.new_zeros(1), inside.cumsum(0)])  # those inside before each place
        return Targets(before[self.indptr], self.indices[inside] - start)

    def take(self, documents: Tensor) -> Targets:
        """Those of some documents, in the order given; a document may be there more than once."""
        counts = self.counts[documents]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shift = (self.indptr[documents] - indptr[:-1]).repeat_interleave(counts)
        return Targets(indptr, self.indices[torch.arange(len(shift), device=shift.device) + shift])

    def dense(self, num_labels: int) -> Tensor:
        """0/1 matrix (batch, num_labels); labels past `num_labels` have no column."""
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
    """Documents as padded token ids; `mask` is True on real tokens, and every row has at least one."""

    ids: Tensor  # (batch, length) int64
    mask: Tensor  # (batch, length) bool
    targets: Targets
    rows: Tensor  # (batch,) position in the corpus, past its end for a copy; -1 marks a repeat, not to be counted
    values: Tensor | None = None  # (batch, length) of features in a corpus that has no texts; a word counts 1

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, length: int | None) -> Batch:
        """The same documents with their first tokens only; all of them where no length is given."""
        if length is None or length >= self.ids.shape[1]:
            return self
        values = None if self.values is None else self.values[:, :length]
        return replace(self, ids=self.ids[:, :length], mask=self.mask[:, :length], values=values)


@dataclass
class LabelSpace:
    """Facts of a corpus that models are built from: plain values, so that a checkpoint stays `weights_only` safe.

    Labels are numbered by falling training count. `unseen` labels, which only validation or test documents
    carry, are numbered after them.
    """

    names: list[str]
    counts: list[int]  # training documents of each label
    num_documents: int  # training documents
    vocab_size: int
    pad_id: int = 0
    unseen: list[str] = field(default_factory=list)
    # Propensities refer to the whole training set, a validation part that was split off it included.
    reference_counts: list[int] = field(default_factory=list)  # of `names`, then of `unseen`
    reference_documents: int = 0
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    added: int = 0  # the last of `names`, which a trained model learned later: tail in every split
    texts: list[str] = field(default_factory=list)  # what `names` mean, in words; empty where nobody has said it

    def __post_init__(self) -> None:
        self.reference_counts = self.reference_counts or [*self.counts, *(0 for _ in self.unseen)]
        self.reference_documents = self.reference_documents or self.num_documents

    @property
    def num_labels(self) -> int:
        """Labels that a head scores."""
        return len(self.names)

    @property
    def num_all(self) -> int:
        """Labels that targets may hold: the known ones, then the unseen."""
        return len(self.names) + len(self.unseen)

    def grown(self, documents: Mapping[str, int]) -> LabelSpace:
        """With new labels at the end, in this order, each with its number of documents; none of them is unseen then.

        A reference count may hold the same documents already: it becomes the larger number, not the sum.
        """
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
            texts=[*self.texts, *("" for _ in documents)] if self.texts else [],
        )

    def with_more(self, documents: Mapping[str, int]) -> LabelSpace:
        """With more documents of added labels; others keep their counts, which decide what is head or tail."""
        counts, references = list(self.counts), list(self.reference_counts)
        for label in range(self.num_labels - self.added, self.num_labels):
            counts[label] += documents.get(self.names[label], 0)
            references[label] = max(references[label], counts[label])
        return replace(self, counts=counts, reference_counts=references)

    def part(self, start: int, stop: int) -> LabelSpace:
        """The labels from `start` to before `stop` alone, numbered from 0, of the same documents."""
        return replace(
            self,
            names=self.names[start:stop],
            counts=self.counts[start:stop],
            unseen=[],
            reference_counts=self.reference_counts[: self.num_labels][start:stop],
            added=max(0, min(stop, self.num_labels) - max(start, self.num_labels - self.added)),
            texts=self.texts[start:stop],
        )

    def prior(self) -> Tensor:
        """Share of training documents with each label, (num_labels,), never exactly 0 or 1."""
        share = (torch.tensor(self.counts, dtype=torch.float64) + 0.5) / (self.num_documents + 1)
        return share.float().clamp(1e-9, 1 - 1e-7)  # in a large corpus a float rounds to 1

    def inverse_propensity(self) -> Tensor:
        """1 / p of each known and unseen label, (num_all,) float64: 1 + C (n + B)^-A (Jain et al. 2016)."""
        a, b = self.propensity_a, self.propensity_b
        c = (math.log(max(self.reference_documents, 3)) - 1) * (b + 1) ** a
        weights: Tensor = 1 + c * (torch.tensor(self.reference_counts, dtype=torch.float64) + b) ** -a
        return weights

    def frequency_class(self) -> Tensor:
        """0 few (n <= 20), 1 medium (n <= 100), 2 many, for known and unseen labels, (num_all,)."""
        counts = torch.tensor([*self.counts, *(0 for _ in self.unseen)])
        return (counts > 20).long() + (counts > 100).long()

    def by_frequency(self) -> Tensor:
        """Label numbers by falling count, ties by number, (num_labels,)."""
        return torch.tensor(self.counts).argsort(descending=True, stable=True)

    def head_by_count(self, threshold: int) -> Tensor:
        """Mask of labels with at least `threshold` training documents (LSFA's split)."""
        return (torch.tensor(self.counts) >= threshold) & self._trained()

    def head_by_tail_size(self, num_tail: int) -> Tensor:
        """Mask of all labels but the `num_tail` rarest (HTTN's split)."""
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
