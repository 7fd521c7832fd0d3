"""Linear models of whole corpora as heads: a library fits them at once, on weights of words."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from backbones.base import Features
from backbones.tfidf import TfIdf
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext, check_low


class LinearEngine(Head):
    """Reads the words of documents itself, whatever the backbone is, and has nothing that gradients train.

    A stage without epochs fits it: `on_enter: [fit]`. The first process does so with all its cores, and the others
    get the result. A subclass writes `learn`, `rank_rows` and the two methods for its state; its `settings` are
    the arguments that make another one like it.

    Args:
        min_documents: words that fewer training documents have are left out.
        sublinear: count words by the logarithm; False takes counts, or values of features, as they are.
        lead: words among the first so many of a document, and pairs of neighbours there, count once more on their own.
    """

    settings: dict[str, Any]

    def __init__(
        self, dim: int, space: LabelSpace, min_documents: int = 2, sublinear: bool = True, lead: int = 0
    ) -> None:
        super().__init__(dim, space)
        check_low(1, min_documents=min_documents)
        check_low(0, lead=lead)
        self.space, self.settings = space, {"min_documents": min_documents, "sublinear": sublinear, "lead": lead}
        self.tfidf = TfIdf(space, min_documents, sublinear, lead)

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether it has a model."""

    @property
    def num_weights(self) -> int | None:
        """How many numbers the model is made of; None where its library does not say."""
        return None

    @abstractmethod
    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        """Fit a model, on the first process, to weights of words (documents, vocabulary) and 0/1 labels."""

    @abstractmethod
    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        """The k best labels of documents given as weights of words, on the CPU."""

    @property
    def pending(self) -> tuple[str, ...]:
        return () if self.fitted else ("fit",)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        raise UserError(
            f"stage {stage!r}: {type(self).__name__} has nothing that gradients train: "
            "give its stage `on_enter: [fit]` and no epochs"
        )

    def rank(self, features: Features, k: int) -> Ranking:
        if features.batch is None:
            raise UserError(f"{type(self).__name__} reads words: give it features with the batch they were made from")
        device, size = features.pooled.device, len(features.batch)
        if self.fitted:
            words = self.tfidf.matrix(self.tfidf.counts(features.batch))
            ranking = self.rank_rows(words, k)
        else:  # a validation before its stage: it knows no label yet
            ranking = Ranking(torch.zeros(size, k), torch.full((size, k), -1))
        return Ranking(ranking.scores.to(device), ranking.labels.to(device))

    # --- transitions

    @torch.no_grad()
    def fit(self, ctx: TransitionContext) -> None:
        """To all training documents, and the copies that the stage adds to them."""
        self._fit(ctx.train_words(self.tfidf.lead), ctx.train_targets().to("cpu"), None, ctx)

    def _fit(self, counts: csr_array, targets: Targets, rows: Tensor | None, ctx: TransitionContext) -> None:
        """To `rows` of the training documents, of which counts and targets are, or to all."""
        self.tfidf.learn(counts)
        words, targets = ctx.augmented(self.tfidf.matrix(counts), targets, rows)
        self.learn(words, label_matrix(targets, self.num_labels), ctx)

    def unfitted(self) -> Self:
        """Another one with the same settings."""
        return type(self)(self.dim, self.space, **self.settings)

    @torch.no_grad()
    def out_of_fold(self, ctx: TransitionContext, folds: int, k: int) -> Ranking:
        """The k best labels of every training document, by models that have not seen it; on the CPU.

        Scores of documents that a linear model was fitted to are far better than it deserves, and no guide to those
        of others.
        """
        counts, targets = ctx.train_words(self.tfidf.lead), ctx.train_targets().to("cpu")
        if not 2 <= folds <= len(targets):
            raise UserError(
                f"{folds} folds of {len(targets):,} documents: there must be at least 2, none of them empty"
            )
        fold_of = torch.randperm(len(targets), generator=torch.Generator().manual_seed(ctx.seed)) % folds
        scores, labels = torch.zeros(len(targets), k), torch.full((len(targets), k), -1)
        for fold in range(folds):
            seen, unseen = (fold_of != fold).nonzero().flatten(), (fold_of == fold).nonzero().flatten()
            engine = self.unfitted().to(self.tfidf.idf.device)  # where processes can exchange what they have
            engine._fit(counts[seen.numpy()], targets.take(seen), seen, ctx)
            ranking = engine._share(counts[unseen.numpy()], k, ctx)
            scores[unseen], labels[unseen] = ranking.scores, ranking.labels
        return Ranking(scores, labels)

    def _share(self, counts: csr_array, k: int, ctx: TransitionContext) -> Ranking:
        """A ranking by the first process, which alone has the model, for all."""
        device = self.tfidf.idf.device
        scores, labels = torch.zeros(counts.shape[0], k), torch.zeros(counts.shape[0], k, dtype=torch.long)
        if ctx.first:
            ranking = self.rank_rows(self.tfidf.matrix(counts), k)
            scores, labels = ranking.scores, ranking.labels
        return Ranking(ctx.sum(scores.to(device)).cpu(), ctx.sum(labels.to(device)).cpu())

    # --- what a checkpoint keeps: of any size, none before it is fitted

    @abstractmethod
    def get_extra_state(self) -> dict[str, Any] | None:
        """The model as tensors and plain values."""

    @abstractmethod
    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        """Take the model of a state."""


def label_matrix(targets: Targets, num_labels: int) -> csr_array:
    """0/1 matrix (documents, num_labels)."""
    known = targets.below(num_labels)
    ones = np.ones(len(known.indices), np.float32)
    return csr_array((ones, known.indices.numpy(), known.indptr.numpy()), (len(known), num_labels))


def missing_library(error: ImportError) -> UserError:
    """What to install, in one line."""
    return UserError(f"the library {error.name} is missing: pip install 'xmc-zoo[linear]'")
