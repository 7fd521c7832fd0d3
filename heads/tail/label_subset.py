"""A head on a contiguous subset of the labels and on their documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from scipy.sparse import csr_array
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext
from zoo.core.errors import UserError

T = TypeVar("T")


class LabelSubset(Head):
    """Wraps a head for the labels `start` to `stop` - 1 of a corpus, which the inner head sees as all labels.

    Transitions of the inner head can be called here: they then run on the training documents with one of these labels.

    Args:
        make: builds the inner head.
        start: first label of the subset.
        stop: label after the last one.
        layer: layer of the backbone that the inner head reads. Default: the features as they are.
        all_documents: run transitions on all training documents.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        make: Callable[[int, LabelSpace], Head],
        start: int,
        stop: int,
        layer: int | None = None,
        all_documents: bool = False,
    ) -> None:
        super().__init__(dim, space)
        self.start, self.stop, self.layer, self.all_documents = start, stop, layer, all_documents
        self.num_labels = stop - start
        self.inner = make(dim, space.part(start, stop))
        self.needs_tokens, self.needs_layers = self.inner.needs_tokens, self.inner.needs_layers
        if layer is not None and self.needs_layers > 1:
            raise UserError(
                f"{type(self.inner).__name__} reads {self.needs_layers} layers, but with `layer_per_part=True` each "
                "part has one: set `layer_per_part=False`, or let it read fewer"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "inner":
                raise
        return self._restricted(getattr(self.inner, name))

    def _restricted(self, method: Any) -> Any:
        """Wrap a method of the inner head so that it takes the context or the targets of the whole corpus."""
        if not callable(method):
            return method

        @wraps(method)
        def call(what: Any, *args: Any) -> Any:
            if not isinstance(what, Targets):
                return method(SubsetContext(what, self), *args)
            rows = self.documents(what)
            chosen: Tensor = method(what.part(self.start, self.stop).take(rows), *args)
            return rows[chosen % len(rows)] + chosen // len(rows) * len(what)  # the n-th copy stays the n-th copy

        return call

    @property
    def pending(self) -> tuple[str, ...]:
        return self.inner.pending

    def check_plan(self, transitions: Sequence[str]) -> None:
        self.inner.check_plan(transitions)

    def documents(self, targets: Targets) -> Tensor:
        """Row numbers of the documents with one of the labels; of all with `all_documents`."""
        has_one = targets.part(self.start, self.stop).counts > 0
        return (has_one | self.all_documents).nonzero().flatten()

    def features(self, features: Features) -> Features:
        """Features of the subset's layer, if it has one."""
        if self.layer is None:
            return features
        tokens, pooled = features.states(self.layer), features.vector(self.layer)
        return Features(tokens, features.mask, pooled, (tokens,), (pooled,), features.batch)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return self.inner.loss(self.features(features), targets.part(self.start, self.stop), stage)

    def rank(self, features: Features, k: int) -> Ranking:
        """The k best labels of the subset, with their numbers in the corpus."""
        best = self.inner.rank(self.features(features), k)
        return Ranking(best.scores, best.labels + self.start * (best.labels >= 0))

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(self.features(features), targets.part(self.start, self.stop))


class SubsetContext(TransitionContext):
    """A transition restricted to the labels of a subset and its training documents.

    All validation documents are kept, with the subset's labels, which most of them lack: calibration needs negatives.
    """

    def __init__(self, ctx: TransitionContext, subset: LabelSubset) -> None:
        super().__init__(backbone=ctx.backbone, seed=ctx.seed, epoch=ctx.epoch, first=ctx.first)
        self.ctx, self.subset = ctx, subset

    @cached_property
    def targets_of_all(self) -> Targets:
        return self.ctx.train_targets().to("cpu")

    @cached_property
    def documents(self) -> Tensor:
        """Corpus rows of the subset's training documents."""
        return self.subset.documents(self.targets_of_all)

    def train_targets(self) -> Targets:
        return self._own(self.targets_of_all).take(self.documents)

    def train_words(self, lead: int = 0) -> csr_array:
        return self.ctx.train_words(lead)[self.documents.numpy()]

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        return self.ctx.augmented(words, targets, self._rows(rows))

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        numbers = torch.zeros(len(self.targets_of_all), dtype=torch.long)
        numbers[self.documents] = torch.arange(len(self.documents))
        for features, batch in self.ctx.train_features(self._rows(rows)):
            mine = replace(batch, targets=self._own(batch.targets), rows=numbers.to(batch.rows.device)[batch.rows])
            yield self.subset.features(replace(features, batch=mine)), mine

    def train_vectors(self, dim: int, device: torch.device) -> Tensor:
        if self.subset.layer is not None:
            return super().train_vectors(dim, device)
        return self.ctx.train_vectors(dim, device)[self.documents]

    def val_targets(self) -> Targets:
        return self._own(self.ctx.val_targets())

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        for features, batch in self.ctx.val_features():
            mine = replace(batch, targets=self._own(batch.targets))
            yield self.subset.features(replace(features, batch=mine)), mine

    def label_features(self, unseen: bool = False) -> Iterator[tuple[Features, Batch]]:
        for features, batch in self.ctx.label_features():
            inside, mine = self._inside(batch)
            if len(inside):
                yield self.subset.features(replace(features.take(inside), batch=mine)), mine

    def label_batches(self, unseen: bool = False) -> Iterator[Batch]:
        return (mine for inside, mine in map(self._inside, self.ctx.label_batches()) if len(inside))

    def _inside(self, batch: Batch) -> tuple[Tensor, Batch]:
        """Positions of the subset's labels in a batch of label texts, and their texts."""
        inside = ((batch.rows >= self.subset.start) & (batch.rows < self.subset.stop)).nonzero().flatten()
        mine = batch.take(inside)
        return inside, replace(mine, rows=mine.rows - self.subset.start)

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        return self.ctx.track(items, what)

    def sum(self, value: Tensor) -> Tensor:
        return self.ctx.sum(value)

    def log(self, values: Mapping[str, float]) -> None:
        self.ctx.log(values)

    def _own(self, targets: Targets) -> Targets:
        return targets.part(self.subset.start, self.subset.stop)

    def _rows(self, rows: Tensor | None) -> Tensor:
        return self.documents if rows is None else self.documents[rows]
