"""Ensemble of any number of heads, whose candidates one model for all labels ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Neighbors, Ranking, TransitionContext, probabilities, top_candidates
from heads.blend.boosting import BoostedTrees, Boosting, library
from heads.blend.candidate_pairs import Examples, Pairs, collect, examples, take
from heads.blend.candidate_union import Candidates, union
from heads.blend.features import Cooccurrence, Counts, FeatureGroups, LabelWords, MakeFeatures, Neighbours, Scores
from heads.blend.label_groups import Clusters, Hierarchy
from heads.blend.perceptron import Network, Perceptron
from heads.engines.linear_engine import fold_numbers
from heads.tail.propensity import EPSILON, GRID, by_propensity, exponent_sums
from heads.tail.rankings import Metric, metric_sums, truncate
from heads.tail.reranker import MAX_EXPONENT, OutOfFold
from zoo.core.console import warn
from zoo.core.errors import MANY, UserError, check_low, check_range, check_width

TINY = 1e-12
ENOUGH = 10_000  # labels of the validation documents from which the ranker is fitted to them
LOGGED: tuple[Metric, ...] = (("P", 1), ("P", 5), ("nDCG", 5), ("PSP", 1), ("PSP", 5))
KEPT: tuple[Metric, ...] = (("P", 1), ("P", 5))
ALL_FEATURES: tuple[MakeFeatures, ...] = (Scores, Counts, Neighbours, LabelWords, Cooccurrence, Clusters, Hierarchy)
RESERVED = ("features", "trees", "inverse_propensity", "power")  # attributes that are not names of members


class Blend(Head):
    """Ranks the candidates of several heads by gradient-boosted trees on features that mean the same for every label.

    One model for all labels learns what no member knows: how far to trust a score at a label's frequency, what similar
    training documents have, whether the words of the label's text occur, and which labels occur together: stacking
    (Wolpert 1992) with a pointwise learning-to-rank model. Scores are probabilities, since it is trained with the log
    loss, on documents that the members have not seen.

    Args:
        members: heads by name; their transitions have dotted names, such as `words.fit` of the member `words`.
        features: groups of features of a (document, label) pair, see `heads.blend.features`. Default: all of them;
            those of words and label texts need documents as words.
        candidates: number of best labels of each member.
        scores: documents that `fit_ranker` learns from. `validation`: validation metrics are then optimistic.
            `out_of_fold`: all training documents, each scored by members that have not seen it, if all members provide
            that, as linear engines do. Default: `validation` if its documents have at least 10,000 labels in all or a
            member has no out-of-fold scores, else `out_of_fold`.
        folds: number of folds of `out_of_fold`.
        documents: maximum number of documents of `out_of_fold` that the ranker learns from, drawn at random.
        ranker: settings of the trees, or of a small network (`hidden: [64, 32]`).
        exponent: rank by r^a p, where r are inverse propensities and a is the exponent: it trades P@k for PSP@k. With
            None, `fit_ranker` chooses the largest one that costs at most `allowed_loss` of P@1 and of P@5.
        allowed_loss: largest loss when `exponent` is None, measured on the ranker's documents by `folds` folds.
        measure_members: also evaluate the rankings of the members, by their names.
    """

    inverse_propensity: Tensor  # (num_scored,)
    power: Tensor  # the exponent that is used

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        members: Mapping[str, Callable[[int, LabelSpace], Head]],
        features: Sequence[MakeFeatures] | None = None,
        candidates: int = 64,
        scores: Literal["validation", "out_of_fold"] | None = None,
        folds: int = 3,
        documents: int = 20_000,
        ranker: Boosting | Network | None = None,
        exponent: float | None = 0.0,
        allowed_loss: float = 0.005,
        measure_members: bool = True,
    ) -> None:
        super().__init__(dim, space)
        check_width(candidates=candidates)
        check_range(2, MANY, folds=folds)
        check_low(1, documents=documents)
        check_range(0, MAX_EXPONENT, exponent=exponent)
        check_range(0, 1, allowed_loss=allowed_loss)
        if not members:
            raise UserError("`members` is empty: give at least one head by name")
        self.space, self.make_features = space, tuple(ALL_FEATURES if features is None else features)
        self.candidates, self.scores, self.folds = min(candidates, space.num_labels), scores, folds
        self.documents = documents
        self.exponent, self.allowed_loss, self.measure_members = exponent, allowed_loss, measure_members
        for name, make in members.items():
            if not name.isidentifier() or hasattr(self, name) or name in RESERVED:
                raise UserError(f"`members`: {name!r} cannot be the name of a member; choose another word")
            self.add_module(name, make(dim, space))
        self.needs_tokens = any(member.needs_tokens for member in self.inner_heads.values())
        self.needs_layers = max(member.needs_layers for member in self.inner_heads.values())
        self.features = self._new_features()
        self.settings = ranker or Boosting()
        self.trees = self._new_ranker()
        inverse = space.inverse_propensity()[: space.num_scored].float()
        self.register_buffer("inverse_propensity", inverse, persistent=False)
        self.register_buffer("power", torch.tensor(exponent or 0.0, dtype=torch.float64), persistent=exponent is None)

    def _new_features(self) -> FeatureGroups:
        """Feature groups that have learned nothing yet."""
        return FeatureGroups([make(self.space.with_unseen(), list(self.inner_heads)) for make in self.make_features])

    def _new_ranker(self) -> BoostedTrees | Perceptron:
        size = len(self.features.names)
        return (
            Perceptron(size, self.settings) if isinstance(self.settings, Network) else BoostedTrees(size, self.settings)
        )

    @property
    def ready(self) -> bool:
        return self.trees.fitted and not self.pending

    def check_indices(self) -> None:
        """Refuse a checkpoint with trees but without what the features have learned."""
        if self.trees.fitted and not self.features.learned:
            raise UserError("the features of the checkpoint are missing: it is damaged")

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "fit_ranker" not in transitions:
            if not self.trees.fitted:
                raise UserError(
                    "Blend would only average its members: end with a stage that has `on_enter: [fit_ranker]`"
                )
        elif any("." in name for name in transitions[transitions.index("fit_ranker") :]):
            raise UserError("fit_ranker needs the scores of all members: put it after their own transitions")
        else:
            if isinstance(self.settings, Boosting):
                library()  # fail before other stages run for hours
            if self.scores == "out_of_fold":
                self._check_folds()

    def _check_folds(self) -> None:
        for name, member in self.inner_heads.items():
            if not isinstance(member, OutOfFold):
                raise UserError(
                    f"{type(member).__name__}, the member {name!r}, has no out_of_fold scores: set `scores=validation`"
                )

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Sum of the losses of the members that the stage trains."""
        members = self.inner_heads
        trained = {n: m for n, m in members.items() if any(p.requires_grad for p in m.parameters())} or members
        terms = {name: member.loss(features, targets, stage) for name, member in trained.items()}
        named = {f"{name}_{term}": value for name, own in terms.items() for term, value in own.items()}
        return {"loss": torch.stack([own["loss"] for own in terms.values()]).sum()} | named

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        ranking = self.blended(self._members_rank(features, self.candidates), features.batch, k)
        return Ranking(ranking.scores.to(features.pooled.device), ranking.labels.to(features.pooled.device))

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        if not self.measure_members:
            return {"": self.rank(features, k)}
        depth = max(self.candidates, k)
        found = {name: head.rankings(features, depth) for name, head in self.inner_heads.items()}
        ranking = self.blended([rankings[""] for rankings in found.values()], features.batch, k)
        own = {"": Ranking(ranking.scores.to(features.pooled.device), ranking.labels.to(features.pooled.device))}
        for name, rankings in found.items():
            own |= {f"{name}/{part}" if part else name: truncate(ranking, k) for part, ranking in rankings.items()}
        return own

    def _members_rank(self, features: Features, depth: int) -> list[Ranking]:
        return [member.rank(features, depth) for member in self.inner_heads.values()]

    @torch.no_grad()
    def blended(self, rankings: Sequence[Ranking], batch: Batch | None, k: int) -> Ranking:
        """Rank the candidates of rankings by the members, on the CPU.

        Before the ranker is fitted, the mean logit of the members that can rank counts.
        """
        able = [not member.pending for member in self.inner_heads.values()]
        used = [ranking for ranking, can in zip(rankings, able, strict=True) if can or not any(able)]
        found = union([truncate(ranking, self.candidates) for ranking in used], batch)
        logits = self._logits(found) if self.ready else found.mean
        # In single precision: equal features make ties, which are then broken by the order of the candidates.
        best = top_candidates(logits.float(), found.labels, max(k, logits.shape[1]))
        return truncate(self._powered(Ranking(probabilities(best.scores) * (best.labels >= 0), best.labels)), k)

    def _powered(self, ranking: Ranking) -> Ranking:
        power = float(self.power)
        return by_propensity(ranking, self.inverse_propensity.cpu(), power) if power else ranking

    def _logits(self, candidates: Candidates) -> Tensor:
        logits = torch.full(candidates.labels.shape, -torch.inf, dtype=torch.float64)
        logits[candidates.known] = self.trees(self.features(candidates))
        return logits

    def token_contributions(self, features: Features, labels: Tensor) -> Tensor | None:
        """Mean over the members that know, each divided by its sum."""
        each = []
        for member in self.inner_heads.values():
            found = member.token_contributions(features, labels)
            if found is None and features.batch is not None and member.needs_tokens:
                found = member.attention_weights(features, labels.clamp_min(0))
                whole = found is not None and found.shape[2] == features.batch.ids.shape[1]
                found = found if whole else None  # token states of the backbone may not be tokens of the batch
            if found is not None:
                found = found.cpu().clamp_min(0)
                each.append(found / found.sum(2, keepdim=True).clamp_min(TINY))
        return torch.stack(each).mean(0) if each else None

    def neighbors(self, features: Features, labels: Tensor) -> Neighbors | None:
        if features.batch is not None:
            for group in self.features.groups:
                if isinstance(group, Neighbours) and group.learned:
                    return group.neighbors(features.batch, labels)
        found = (member.neighbors(features, labels) for member in self.inner_heads.values())
        return next((neighbors for neighbors in found if neighbors is not None), None)

    # --- the ranker

    @torch.no_grad()
    def fit_ranker(self, ctx: TransitionContext) -> None:
        """Fit the trees on documents that the members have not seen, and the features on all training documents."""
        pairs, targets = self.training_pairs(ctx)
        self.learn(pairs, targets, ctx)

    def learn(self, pairs: Pairs, targets: Targets, ctx: TransitionContext) -> None:
        """Fit the trees to the candidates of unseen documents with these labels, and choose the exponent.

        Logs the importance of each feature, and metrics of the documents by trees that are fitted to other folds.
        """
        if not ctx.first:
            return
        if not 0 < pairs.hits.sum() < len(pairs.hits):
            which = "all of them are" if pairs.hits.any() else "none of them is"
            warn(f"fit_ranker learns nothing from the candidates, as {which} correct: scores are the members' mean")
            return
        seed = ctx.seed % 2**32
        ranking, seen = self._cross_fitted(pairs, targets, seed)
        if self.exponent is None:
            self._choose_exponent(ranking, seen)
        sums = metric_sums(self._powered(ranking).labels, seen, self._weights, LOGGED)
        self.trees.learn(pairs.inputs.numpy(), pairs.hits.numpy(), seed)
        ctx.log({f"blend/importance/{name}": value for name, value in self.importances().items()})
        values = (sums[:, 0] / np.maximum(sums[:, 1], 1e-12)).tolist()
        estimates = {f"blend/{name}@{k}": value for (name, k), value in zip(LOGGED, values, strict=True)}
        ctx.log(estimates | {"blend/exponent": float(self.power)})

    def _cross_fitted(self, pairs: Pairs, targets: Targets, seed: int) -> tuple[Ranking, Targets]:
        """Rankings of the ranker's documents, each by trees that have not seen it, in another order of documents."""
        documents = pairs.sizes.nonzero().flatten()
        fold_of = fold_numbers(len(documents), min(self.folds, len(documents)), seed)
        rankings, order = [], []
        for fold in range(int(fold_of.max()) + 1):
            train, test = pairs.take(documents[fold_of != fold]), pairs.take(documents[fold_of == fold])
            if 0 < train.hits.sum() < len(train.hits):
                trees = self._new_ranker()
                trees.learn(train.inputs.numpy(), train.hits.numpy(), seed)
                rankings.append(test.ranking(trees(test.inputs), len(self.inner_heads) * self.candidates))
                order.append(documents[fold_of == fold])
        parts = zip(*((ranking.scores, ranking.labels) for ranking in rankings), strict=True)
        return Ranking(*(torch.cat(part) for part in parts)), targets.take(torch.cat(order))

    def _choose_exponent(self, ranking: Ranking, targets: Targets) -> None:
        """Choose the largest exponent of the grid that costs at most `allowed_loss` of P@1 and of P@5."""
        inverse = self.inverse_propensity.cpu()
        sums = exponent_sums(ranking, targets, inverse, self._weights, KEPT)
        reached = sums[..., 0] / sums[..., 1].clamp_min(1e-12)  # (exponents, metrics)
        allowed = (reached >= reached[0] - self.allowed_loss - EPSILON).all(1)
        self.power.fill_(GRID[int(allowed.nonzero().max())])

    @property
    def _weights(self) -> np.ndarray:
        """Inverse propensities of the metrics, with labels that training never saw."""
        return self.space.inverse_propensity().numpy()

    def training_pairs(self, ctx: TransitionContext) -> tuple[Pairs, Targets]:
        """Candidates of unseen documents, on every process, and the labels of these documents."""
        every = torch.arange(len(ctx.train_targets()))
        if self.source(ctx) == "validation":
            self.features.learn(ctx, every)
            batches = ctx.val_features()
            found = ((batch, self._members_rank(features, self.candidates)) for features, batch in batches)
            return self.pairs_of(found, ctx.val_targets(), ctx), ctx.val_targets().to("cpu")
        self._check_folds()
        pairs = collect(self._out_of_fold(ctx), len(every), len(self.features.names), ctx, self._device)
        self.features.learn(ctx, every)
        return pairs, ctx.train_targets().to("cpu")

    def pairs_of(
        self, found: Iterable[tuple[Batch, Sequence[Ranking]]], targets: Targets, ctx: TransitionContext
    ) -> Pairs:
        """Candidates of documents that the members have ranked; `batch.rows` are rows of `targets`."""
        return collect(examples(self.features, found), len(targets), len(self.features.names), ctx, self._device)

    @property
    def _device(self) -> torch.device:
        return self.inverse_propensity.device

    def source(self, ctx: TransitionContext) -> str:
        """Documents that the ranker learns from: `validation` or `out_of_fold`."""
        if self.scores is None:
            if not all(isinstance(member, OutOfFold) for member in self.inner_heads.values()):
                return "validation"
            return "validation" if len(ctx.val_targets().indices) >= ENOUGH else "out_of_fold"
        return self.scores

    def _out_of_fold(self, ctx: TransitionContext) -> Iterator[Examples]:
        members = [member for member in self.inner_heads.values() if isinstance(member, OutOfFold)]
        rankings = [member.out_of_fold(ctx, self.folds, self.candidates) for member in members]
        size = len(ctx.train_targets())
        fold_of = fold_numbers(size, self.folds, ctx.seed)
        drawn = torch.randperm(size, generator=torch.Generator().manual_seed(ctx.seed + 1)) < self.documents
        for fold in range(self.folds):
            groups = self._new_features().to(self._device)
            groups.learn(ctx, (fold_of != fold).nonzero().flatten())
            batches = ctx.train_features(((fold_of == fold) & drawn).nonzero().flatten())
            yield from examples(groups, ((batch, take(rankings, batch.rows.cpu())) for _, batch in batches))

    def importances(self) -> dict[str, float]:
        """Share of each feature in the gain of the trees, by name, largest first."""
        if not self.trees.fitted:
            return {}
        shares = dict(zip(self.features.names, self.trees.importances().tolist(), strict=True))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))
