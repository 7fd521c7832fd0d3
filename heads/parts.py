"""A head for a run of labels, which sees their documents alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import torch
from scipy.sparse import csr_array
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext

T = TypeVar("T")


class Part(Head):
    """The labels from `start` to before `stop` of a corpus, for a head that takes them for all there are.

    Transitions of that head are its own too, and run on the documents that have one of these labels, or on all.
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
                f"{type(self.inner).__name__} reads {self.needs_layers} layers, and a part with an encoder of its own "
                "has one: let it read fewer, or set --model.head.layer_per_part=false"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "inner":
                raise
        return self._within(getattr(self.inner, name))

    def _within(self, method: Any) -> Any:
        """A method of the inner head that takes a transition or targets, for those of the whole corpus."""
        if not callable(method):
            return method

        @wraps(method)
        def call(what: Any, *args: Any) -> Any:
            if not isinstance(what, Targets):
                return method(PartContext(what, self), *args)
            rows = self.documents(what)
            chosen: Tensor = method(what.part(self.start, self.stop).take(rows), *args)
            return rows[chosen % len(rows)] + chosen // len(rows) * len(what)  # a copy stays one of the same number

        return call

    @property
    def pending(self) -> tuple[str, ...]:
        return self.inner.pending

    def check_plan(self, transitions: Sequence[str]) -> None:
        self.inner.check_plan(transitions)

    def documents(self, targets: Targets) -> Tensor:
        """Numbers of the documents that have one of the labels, or of all."""
        has_one = targets.part(self.start, self.stop).counts > 0
        return (has_one | self.all_documents).nonzero().flatten()

    def features(self, features: Features) -> Features:
        """Of the part's own layer, where it has one."""
        if self.layer is None:
            return features
        tokens, pooled = features.states(self.layer), features.vector(self.layer)
        return Features(tokens, features.mask, pooled, (tokens,), (pooled,), features.batch)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return self.inner.loss(self.features(features), targets.part(self.start, self.stop), stage)

    def rank(self, features: Features, k: int) -> Ranking:
        """The k best of its labels, by their numbers in the corpus."""
        best = self.inner.rank(self.features(features), k)
        return Ranking(best.scores, best.labels + self.start * (best.labels >= 0))

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(self.features(features), targets.part(self.start, self.stop))


class PartContext:
    """A transition that shows only the labels of a part and the training documents that have one.

    Validation documents are all there, with the part's labels: on most of them it is to be silent.
    """

    def __init__(self, ctx: TransitionContext, part: Part) -> None:
        self.ctx, self.part = ctx, part
        self.seed, self.first, self.backbone, self.epoch = ctx.seed, ctx.first, ctx.backbone, ctx.epoch
        targets = ctx.train_targets().to("cpu")
        self.documents, self.size = part.documents(targets), len(targets)

    def train_targets(self) -> Targets:
        return self._cut(self.ctx.train_targets().to("cpu")).take(self.documents)

    def train_words(self, lead: int = 0) -> csr_array:
        return self.ctx.train_words(lead)[self.documents.numpy()]

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        return self.ctx.augmented(words, targets, self._rows(rows))

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        numbers = torch.zeros(self.size, dtype=torch.long)
        numbers[self.documents] = torch.arange(len(self.documents))
        for features, batch in self.ctx.train_features(self._rows(rows)):
            mine = replace(batch, targets=self._cut(batch.targets), rows=numbers.to(batch.rows.device)[batch.rows])
            yield self.part.features(replace(features, batch=mine)), mine

    def val_targets(self) -> Targets:
        return self._cut(self.ctx.val_targets())

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        for features, batch in self.ctx.val_features():
            mine = replace(batch, targets=self._cut(batch.targets))
            yield self.part.features(replace(features, batch=mine)), mine

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        return self.ctx.track(items, what)

    def sum(self, value: Tensor) -> Tensor:
        return self.ctx.sum(value)

    def log(self, values: Mapping[str, float]) -> None:
        self.ctx.log(values)

    def _cut(self, targets: Targets) -> Targets:
        return targets.part(self.part.start, self.part.stop)

    def _rows(self, rows: Tensor | None) -> Tensor:
        return self.documents if rows is None else self.documents[rows]
