"""Base class of heads that a library for linear models fits to TF-IDF features."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, hstack
from torch import Tensor

from backbones.base import Features
from backbones.tfidf import TfIdf
from datamodules.batch import LabelSpace, Targets
from datamodules.prepare.bags import occurrences
from heads.base import Head, Ranking, TransitionContext
from heads.tree.label_tree import label_matrix
from zoo.core.errors import UserError, check_low

Kind = Literal["tfidf", "dense", "both"]


class Documents(NamedTuple):
    """What the features of documents are computed from; None if they do not need it."""

    counts: csr_array | None  # (documents, vocabulary)
    vectors: Tensor | None  # (documents, dim)

    def take(self, rows: Tensor) -> Documents:
        counts = None if self.counts is None else self.counts[rows.numpy()]
        return Documents(counts, None if self.vectors is None else self.vectors[rows])


class LinearEngine(Head):
    """Base class of linear engines: heads on TF-IDF features or frozen document vectors, without gradient training.

    A stage without epochs fits the model: `on_enter: [fit]`. The first process fits it with all its cores, and the
    result is broadcast. Implement `learn`, `rank_rows`, `get_extra_state` and `set_extra_state`, and add the arguments
    of the subclass to `settings`.

    Args:
        min_documents: words in fewer training documents are dropped.
        sublinear: use 1 + ln(count); False uses counts, or feature values, as they are.
        lead: give the first `lead` words of a document, and pairs of neighbours among them, features of their own.
        features: `tfidf`, whatever the backbone is; `dense` for the backbone's document vectors, which must not change
            after `fit`; or `both`, one after the other. Each has unit length.
        dense_weight: factor of the document vectors in `both`.
    """

    settings: dict[str, Any]

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        min_documents: int = 2,
        sublinear: bool = True,
        lead: int = 0,
        features: Kind = "tfidf",
        dense_weight: float = 1.0,
    ) -> None:
        super().__init__(dim, space)
        check_low(1e-9, dense_weight=dense_weight)
        if features not in get_args(Kind):
            raise UserError(f"`features={features}` is none of {', '.join(get_args(Kind))}")
        if features != "tfidf" and dim < 2:
            raise UserError(f"`features={features}` needs a backbone with document vectors, unlike Words")
        self.features, self.dense_weight = features, dense_weight
        self.space, self.settings = space, {"min_documents": min_documents, "sublinear": sublinear, "lead": lead}
        self.settings |= {"features": features, "dense_weight": dense_weight}
        self.tfidf = TfIdf(space, min_documents, sublinear, lead)

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether there is a model."""

    @property
    def num_features(self) -> int:
        """Width of the features that the model reads."""
        words = 0 if self.features == "dense" else len(self.tfidf.idf)
        return words + (0 if self.features == "tfidf" else self.dim)

    @property
    def num_weights(self) -> int | None:
        """Number of weights of the model; None if unknown."""
        return None

    @abstractmethod
    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        """Fit the model, on the first process, to features (documents, width) and 0/1 labels."""

    @abstractmethod
    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        """Rank the k best labels of documents from their features, on the CPU."""

    def evidence(self, ids: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """What each feature of a document adds to the scores of labels, (labels, features); None if unknown."""
        return None

    def token_contributions(self, features: Features, labels: Tensor) -> Tensor | None:
        """Evidence of words, shared among their occurrences; that of document vectors has no words."""
        if not self.fitted or self.features == "dense" or features.batch is None:
            return None
        batch, words = features.batch, self.matrix(self._documents(features))
        found = torch.zeros(*labels.shape, batch.ids.shape[1])
        for row, wanted in enumerate(labels.cpu().clamp_min(0).numpy()):
            own = slice(*words.indptr[row : row + 2])
            evidence = self.evidence(words.indices[own], words.data[own], wanted)
            if evidence is None:
                return None
            places = batch.mask[row].nonzero().flatten().cpu()
            tokens = batch.ids[row].cpu()[places].numpy()
            found[row, :, places] = torch.from_numpy(self._by_token(tokens, words.indices[own], evidence)).float()
        return found

    def _by_token(self, tokens: np.ndarray, ids: np.ndarray, evidence: np.ndarray) -> np.ndarray:
        """Evidence (labels, tokens) from that of the features `ids`, ascending."""
        columns, places = occurrences(tokens, self.tfidf.vocab_size, self.tfidf.lead)
        at = np.searchsorted(ids, columns).clip(max=max(len(ids) - 1, 0))
        known = ids[at] == columns if len(ids) else np.zeros(len(columns), bool)
        at, places = at[known], places[known]
        share = np.zeros((len(ids), len(tokens)))
        np.add.at(share, (at, places), 1)
        return np.asarray(evidence @ (share / np.maximum(share.sum(1, keepdims=True), 1)))

    @property
    def pending(self) -> tuple[str, ...]:
        return () if self.fitted else ("fit",)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        raise UserError(
            f"stage {stage!r}: {type(self).__name__} is not trained by gradients: "
            "give its stage `on_enter: [fit]` and no epochs"
        )

    def rank(self, features: Features, k: int) -> Ranking:
        device, size = features.pooled.device, len(features.pooled)
        if self.features != "dense" and features.batch is None:
            raise UserError(f"{type(self).__name__} reads words: `features.batch` is missing")
        if self.fitted:
            ranking = self.rank_rows(self.matrix(self._documents(features)), k)
        else:  # validation before its stage
            ranking = Ranking(torch.zeros(size, k), torch.full((size, k), -1))
        return Ranking(ranking.scores.to(device), ranking.labels.to(device))

    def matrix(self, documents: Documents) -> csr_array:
        """Features of documents, (documents, width): blocks of unit length."""
        counts, vectors = documents
        blocks = [] if counts is None else [self.tfidf.matrix(counts)]
        if vectors is not None:
            scale = self.dense_weight if blocks else 1.0
            blocks.append(csr_array((scale * F.normalize(vectors.float(), dim=1)).numpy()))
        return blocks[0] if len(blocks) == 1 else csr_array(hstack(blocks, format="csr"))

    def _documents(self, features: Features) -> Documents:
        if self.features == "dense":
            return Documents(None, features.pooled.cpu())
        assert features.batch is not None
        return Documents(self.tfidf.counts(features.batch), features.pooled.cpu() if self.features == "both" else None)

    def _train_documents(self, ctx: TransitionContext) -> Documents:
        counts = None if self.features == "dense" else ctx.train_words(self.tfidf.lead)
        device = self.tfidf.idf.device  # that of all-reduces
        return Documents(counts, None if self.features == "tfidf" else ctx.train_vectors(self.dim, device))

    # --- transitions

    @torch.no_grad()
    def fit(self, ctx: TransitionContext) -> None:
        """Fit to all training documents and the stage's augmented copies."""
        self._fit(self._train_documents(ctx), ctx.train_targets().to("cpu"), None, ctx)

    def _fit(self, documents: Documents, targets: Targets, rows: Tensor | None, ctx: TransitionContext) -> None:
        """Fit to the training documents `rows`, or all, which have these targets."""
        if documents.counts is not None:
            self.tfidf.learn(documents.counts)
        words, targets = ctx.augmented(self.matrix(documents), targets, rows)
        self.learn(words, label_matrix(targets, self.num_labels), ctx)

    def unfitted(self) -> Self:
        """A new engine with the same settings."""
        return type(self)(self.dim, self.space, **self.settings)

    @torch.no_grad()
    def out_of_fold(self, ctx: TransitionContext, folds: int, k: int) -> Ranking:
        """Rank the k best labels of every training document with models that have not seen it, on the CPU.

        In-sample scores of a linear model are far too good to train another model on.
        """
        documents, targets = self._train_documents(ctx), ctx.train_targets().to("cpu")
        if not 2 <= folds <= len(targets):
            raise UserError(
                f"{folds} folds of {len(targets):,} documents: give at least 2 folds, and no more than documents"
            )
        fold_of = fold_numbers(len(targets), folds, ctx.seed)
        scores, labels = torch.zeros(len(targets), k), torch.full((len(targets), k), -1)
        for fold in range(folds):
            seen, unseen = (fold_of != fold).nonzero().flatten(), (fold_of == fold).nonzero().flatten()
            engine = self.unfitted().to(self.tfidf.idf.device)  # the device of all-reduces
            engine._fit(documents.take(seen), targets.take(seen), seen, ctx)
            ranking = engine._share(documents.take(unseen), len(unseen), k, ctx)
            scores[unseen], labels[unseen] = ranking.scores, ranking.labels
        return Ranking(scores, labels)

    def _share(self, documents: Documents, size: int, k: int, ctx: TransitionContext) -> Ranking:
        """Rank on the first process, which has the model, and broadcast the ranking."""
        device = self.tfidf.idf.device
        scores, labels = torch.zeros(size, k), torch.zeros(size, k, dtype=torch.long)
        if ctx.first:
            ranking = self.rank_rows(self.matrix(documents), k)
            scores, labels = ranking.scores, ranking.labels
        return Ranking(ctx.sum(scores.to(device)).cpu(), ctx.sum(labels.to(device)).cpu())

    # --- checkpoints: the model is extra state, since its size is unknown before it is fitted

    @abstractmethod
    def get_extra_state(self) -> dict[str, Any] | None:
        """The model as tensors and plain values; None before it is fitted."""

    @abstractmethod
    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        """Load the model."""


def fold_numbers(size: int, folds: int, seed: int) -> Tensor:
    """Fold of each training document, the same for all engines of a run."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)) % folds
