"""Ensemble of any number of heads, whose candidates one model for all labels ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext, probabilities, top_candidates
from heads.blend.boosting import BoostedTrees, Boosting, library
from heads.blend.candidate_union import Candidates, union
from heads.blend.features import ALL_FEATURES, FeatureGroups, MakeFeatures
from heads.engines.linear_engine import fold_numbers
from heads.tail.propensity import by_propensity
from heads.tail.rankings import relevant, truncate
from heads.tail.reranker import MAX_EXPONENT, OutOfFold
from zoo.core.errors import MANY, UserError, check_range, check_width

ENOUGH = 10_000  # labels of the validation documents from which the ranker is fitted to them
STEP = 2**20  # pairs per all-reduce
RESERVED = ("features", "trees", "inverse_propensity")  # attributes that are not names of members


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
        ranker: settings of the trees.
        exponent: rank by r^a p, where r are inverse propensities and a is the exponent. It trades P@k for PSP@k;
            `Rerank` around this head chooses it on validation documents.
        measure_members: also evaluate the rankings of the members, by their names.
    """

    inverse_propensity: Tensor  # (num_labels,)

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        members: Mapping[str, Callable[[int, LabelSpace], Head]],
        features: Sequence[MakeFeatures] | None = None,
        candidates: int = 64,
        scores: Literal["validation", "out_of_fold"] | None = None,
        folds: int = 3,
        ranker: Boosting | None = None,
        exponent: float = 0.0,
        measure_members: bool = True,
    ) -> None:
        super().__init__(dim, space)
        check_width(candidates=candidates)
        check_range(2, MANY, folds=folds)
        check_range(0, MAX_EXPONENT, exponent=exponent)
        if not members:
            raise UserError("`members` is empty: give at least one head by name")
        self.space, self.make_features = space, tuple(ALL_FEATURES if features is None else features)
        self.candidates, self.scores, self.folds = min(candidates, space.num_labels), scores, folds
        self.exponent, self.measure_members = exponent, measure_members
        for name, make in members.items():
            if not name.isidentifier() or hasattr(self, name) or name in RESERVED:
                raise UserError(f"`members`: {name!r} cannot be the name of a member; choose another word")
            self.add_module(name, make(dim, space))
        self.needs_tokens = any(member.needs_tokens for member in self.inner_heads.values())
        self.needs_layers = max(member.needs_layers for member in self.inner_heads.values())
        self.features = self._new_features()
        self.trees = BoostedTrees(len(self.features.names), ranker or Boosting())
        inverse = space.inverse_propensity()[: space.num_labels].float()
        self.register_buffer("inverse_propensity", inverse, persistent=False)

    def _new_features(self) -> FeatureGroups:
        """Feature groups that have learned nothing yet."""
        return FeatureGroups([make(self.space, list(self.inner_heads)) for make in self.make_features])

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
        return self._blended(features, self._members_rank(features, self.candidates), k)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        if not self.measure_members:
            return {"": self.rank(features, k)}
        depth = max(self.candidates, k)
        found = {name: head.rankings(features, depth) for name, head in self.inner_heads.items()}
        own = {"": self._blended(features, [rankings[""] for rankings in found.values()], k)}
        for name, rankings in found.items():
            own |= {f"{name}/{part}" if part else name: truncate(ranking, k) for part, ranking in rankings.items()}
        return own

    def _members_rank(self, features: Features, depth: int) -> list[Ranking]:
        return [member.rank(features, depth) for member in self.inner_heads.values()]

    @torch.no_grad()
    def _blended(self, features: Features, rankings: Sequence[Ranking], k: int) -> Ranking:
        """Rank the candidates; before the ranker is fitted, by the mean logit of the members that can rank."""
        device = features.pooled.device
        able = [not member.pending for member in self.inner_heads.values()]
        used = [ranking for ranking, can in zip(rankings, able, strict=True) if can or not any(able)]
        found = union([truncate(ranking, self.candidates) for ranking in used], features.batch)
        logits = self._logits(found) if self.ready else found.mean
        # In single precision: equal features make ties, which are then broken by the order of the candidates.
        best = top_candidates(logits.float(), found.labels, max(k, logits.shape[1]))
        ranking = Ranking(probabilities(best.scores) * (best.labels >= 0), best.labels)
        if self.exponent:
            ranking = by_propensity(ranking, self.inverse_propensity.cpu(), self.exponent)
        ranking = truncate(ranking, k)
        return Ranking(ranking.scores.to(device), ranking.labels.to(device))

    def _logits(self, candidates: Candidates) -> Tensor:
        logits = torch.full(candidates.labels.shape, -torch.inf, dtype=torch.float64)
        logits[candidates.known] = self.trees(self.features(candidates))
        return logits

    # --- the ranker

    @torch.no_grad()
    def fit_ranker(self, ctx: TransitionContext) -> None:
        """Fit the trees on documents that the members have not seen, and the features on all training documents."""
        inputs, hits = self.training_pairs(ctx)
        if not 0 < hits.sum() < len(hits):
            raise UserError("fit_ranker: all of the candidates are correct, or none is: nothing can be learned")
        if ctx.first:
            self.trees.learn(inputs.numpy(), hits.numpy(), seed=ctx.seed % 2**32)
            ctx.log({f"blend/importance/{name}": value for name, value in self.importances().items()})

    def training_pairs(self, ctx: TransitionContext) -> tuple[Tensor, Tensor]:
        """Features (pairs, features) and hits (pairs,) of the candidates of unseen documents, on every process."""
        every, width = torch.arange(len(ctx.train_targets())), len(self.features.names)
        if self.source(ctx) == "validation":
            self.features.learn(ctx, every)
            batches = ctx.val_features()
            found = ((batch, self._members_rank(features, self.candidates)) for features, batch in batches)
            return collect(examples(self.features, found), len(ctx.val_targets()), width, ctx, self._device)
        self._check_folds()
        pairs = collect(self._out_of_fold(ctx), len(every), width, ctx, self._device)
        self.features.learn(ctx, every)
        return pairs

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
        fold_of = fold_numbers(len(ctx.train_targets()), self.folds, ctx.seed)
        for fold in range(self.folds):
            groups = self._new_features().to(self._device)
            groups.learn(ctx, (fold_of != fold).nonzero().flatten())
            batches = ctx.train_features((fold_of == fold).nonzero().flatten())
            yield from examples(groups, ((batch, take(rankings, batch.rows.cpu())) for _, batch in batches))

    def importances(self) -> dict[str, float]:
        """Share of each feature in the gain of the trees, by name, largest first."""
        shares = dict(zip(self.features.names, self.trees.importances().tolist(), strict=True))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


# Documents (docs,), numbers of their pairs (docs,), and features and hits of the pairs (pairs, features + 1).
Examples = tuple[Tensor, Tensor, Tensor]


def examples(groups: FeatureGroups, found: Iterable[tuple[Batch, Sequence[Ranking]]]) -> Iterator[Examples]:
    """Features and hits of the candidates of batches that the members have ranked."""
    for batch, rankings in found:
        candidates = union(rankings, batch)
        hits = relevant(candidates.labels, batch.targets.to("cpu"))[candidates.known]
        values = torch.cat([groups(candidates), hits[:, None]], dim=1)
        yield batch.rows.cpu(), candidates.known.sum(1), values


def take(rankings: Sequence[Ranking], rows: Tensor) -> list[Ranking]:
    return [Ranking(ranking.scores[rows], ranking.labels[rows]) for ranking in rankings]


def collect(
    examples: Iterable[Examples], size: int, width: int, ctx: TransitionContext, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Gather the pairs of `size` documents of all processes, in corpus order, on every process."""
    own = list(examples)
    counts = torch.zeros(size, dtype=torch.long)
    for rows, sizes, _ in own:
        counts[rows] = sizes
    counts = ctx.sum(counts.to(device)).cpu()
    starts = counts.cumsum(0) - counts
    table = torch.zeros(int(counts.sum()), width + 1)
    for rows, sizes, values in own:
        places = torch.arange(len(values)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        table[starts[rows].repeat_interleave(sizes) + places] = values
    for part in torch.split(table, STEP):  # rows of other processes are zeros
        part.copy_(ctx.sum(part.to(device)))
    return table[:, :-1], table[:, -1]
