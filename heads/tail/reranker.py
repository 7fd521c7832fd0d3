"""Re-ranking of another head's candidates in favor of rare labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext
from heads.tail.platt import NEAR, SMALLEST, logits_of
from heads.tail.propensity import EPSILON, GRID, as_probabilities, best_exponent, by_propensity, exponent_sums
from heads.tail.rankings import CandidateHead, parse_metric, relevant, sort_by_score, truncate
from heads.tail.ranknet import Form, RankNet, Scale
from heads.tail.ranknet_training import MARGINS, Candidates, RankNetTraining, train_ranknet
from zoo.core.errors import MANY, UserError, check_range, check_width

MAX_EXPONENT = 10  # beyond it, powers of inverse propensities overflow
MANY_LABELS = 50_000  # number of labels from which the network is narrow, with sparse gradients
STEP = 2**14  # documents per all-reduce of scores


@runtime_checkable
class OutOfFold(Protocol):
    """A head with out-of-fold scores of the training documents, such as `LinearEngine`."""

    def out_of_fold(self, ctx: TransitionContext, folds: int, k: int) -> Ranking: ...


class Rerank(CandidateHead):
    """RankNet and propensity re-ranking: score the best labels of another head again, in favor of rare labels.

    "Improving Tail Label Prediction for Extreme Multi-label Learning" (https://openreview.net/forum?id=hUAmiQCeUGm),
    section 3.2. There are two forms, which can be combined, the network first:

    - `train_ranknet`: F = ln f + a ln r + W2 ReLU(W1 f), where f are scores and r inverse propensities, learns to rank
      the rare labels of a document before the frequent ones, and both before wrong labels. Each part can be switched.
    - `choose_exponent`, or a fixed `exponent`: rank by r^a f. It trades P@k for PSP@k. The parameter-free form of the
      paper is `blocks=0, learned_exponent=None, exponent=1`.

    Changes to the paper: the network sees only the candidates of a document and is trained on scores of documents that
    the inner head was not trained on; log probabilities; the trained exponent; both terms of the loss are means over
    pairs. A label outside the candidates is never promoted. Scores stay in [0, 1], in the order of the ranking.

    Args:
        inner: head that finds the candidates; its transitions have dotted names, such as `inner.fit`.
        candidates: number of its best labels to re-rank.
        blocks: number of stacked residual blocks; 0 for none.
        width: width of the bottleneck. Default: 256, and 64 from 50,000 labels on.
        scale: scale of the scores that the network changes.
        network: form of the blocks: `bottleneck` is W2 ReLU(W1 f); `full`, which needs probabilities, is Wr f, where Wr
            has low rank apart from a diagonal that starts at r - 1.
        learned_exponent: start of the exponent a that is trained with the network; None for no term a ln r.
        scores: documents whose scores train the network. `out_of_fold`: all training documents, each scored by a model
            that has not seen it, if the inner head provides that. `held_out`: a share of the training documents, which
            the inner head's stages leave out with `documents: base_documents`. `validation`: validation metrics are
            then biased. Default: `out_of_fold` if the inner head provides it, else `validation`.
        folds: number of models of `out_of_fold`.
        held_out: share of the training documents of `held_out`.
        ranknet: training of the network.
        exponent: fixed exponent a. Default: 0 until `choose_exponent`.
        gain: ranking metric on validation documents, such as PSP@5, that `choose_exponent` maximises.
        keep: ranking metric that may drop by at most `allowed_loss`.
        allowed_loss: largest drop of `keep`, absolute.
        measure_inner: also evaluate the inner head's ranking, as `inner`, and that of the network before the exponent,
            as `network`.
    """

    trained: Tensor  # () bool, `train_ranknet` has run
    exponent: Tensor  # () a
    inverse_propensity: Tensor  # (num_labels,) r

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        inner: Callable[[int, LabelSpace], Head],
        candidates: int = 100,
        blocks: int = 1,
        width: int | None = None,
        scale: Scale = "log_probabilities",
        network: Form = "bottleneck",
        learned_exponent: float | None = 0.5,
        scores: Literal["out_of_fold", "held_out", "validation"] | None = None,
        folds: int = 3,
        held_out: float = 0.1,
        ranknet: RankNetTraining | None = None,
        exponent: float | None = None,
        gain: str = "PSP@5",
        keep: str = "P@1",
        allowed_loss: float = 0.005,
        measure_inner: bool = True,
    ) -> None:
        super().__init__(dim, space, inner, candidates)
        check_width(width=width)
        check_range(0, MANY, blocks=blocks)
        check_range(0, MAX_EXPONENT, exponent=exponent)
        check_range(-MAX_EXPONENT, MAX_EXPONENT, learned_exponent=learned_exponent)
        check_range(0, 1, allowed_loss=allowed_loss, held_out=held_out)
        check_range(2, MANY, folds=folds)
        if held_out in (0, 1):
            raise UserError(f"`held_out={held_out}` must be between 0 and 1")
        if scale == "probabilities" and learned_exponent is not None:
            raise UserError(
                f"`scale=probabilities` has no term a ln r: give `learned_exponent=null` instead of {learned_exponent}"
            )
        if network == "full" and scale != "probabilities":
            raise UserError(
                f"`network=full` multiplies scores, and with `scale={scale}` they can be negative: give "
                "`scale=probabilities`"
            )
        self.scale, self.fixed, self.measure_inner = scale, exponent, measure_inner
        self.scores = scores or ("out_of_fold" if isinstance(self.inner, OutOfFold) else "validation")
        self.folds, self.held_out = folds, held_out
        self.training_settings, self.allowed_loss = ranknet or RankNetTraining(), allowed_loss
        self.metrics = parse_metric(gain, "gain"), parse_metric(keep, "keep")
        many = space.num_labels - space.added >= MANY_LABELS  # the tables keep their width when labels are added
        inverse = space.inverse_propensity()[: space.num_labels].float()
        self.net = RankNet(inverse, width or (64 if many else 256), blocks, many, scale, network, learned_exponent)
        self.net.requires_grad_(False)
        self.register_buffer("trained", torch.tensor(False))
        self.register_buffer("exponent", torch.tensor(exponent or 0.0))
        self.register_buffer("inverse_propensity", torch.empty(0), persistent=False)
        self.leaves_out = False  # a stage has called `base_documents`
        self._set_space(space)
        self._sync_flags()
        self.register_load_state_dict_post_hook(sync_flags)  # type: ignore[no-untyped-call]

    def _set_space(self, space: LabelSpace) -> None:
        self.num_labels, self.counts = space.num_labels, torch.tensor(space.counts, dtype=torch.float)
        weights = space.inverse_propensity()  # (num_all,) double
        self.metric_weights = weights.numpy()
        self.inverse_propensity = weights[: space.num_labels].float().to(self.trained.device)

    def _sync_flags(self) -> None:
        """Copy buffers to Python values: reading a buffer would make a GPU wait."""
        self.is_trained, self.power = bool(self.trained), round(float(self.exponent), 6)
        self.largest_factor = self.net.largest_factor()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if self.net.exponent is not None:  # older checkpoints have none
            state_dict.setdefault(f"{prefix}net.exponent", torch.zeros_like(self.net.exponent))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        # A network of another size is not loaded, and this one is untrained.
        self.trained &= all(f"{prefix}net.{name}" in state_dict for name in self.net.state_dict())

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return self.inner.loss(features, targets, stage)

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        own = [name for name in transitions if not name.startswith("inner.")]
        if not own and not self.is_trained and not self.power:
            raise UserError(
                "Rerank would change nothing: end with a stage that has `on_enter: [train_ranknet]` or "
                "`[choose_exponent]`, or give `exponent`"
            )
        order = {"train_ranknet": 1, "choose_exponent": 2}
        if sorted(transitions, key=lambda name: order.get(name, 0)) != list(transitions):
            raise UserError(
                "wrong order of transitions: train the inner head first, then train_ranknet, then choose_exponent"
            )
        if "choose_exponent" in own and self.fixed is not None:
            raise UserError(f"`exponent={self.fixed}` is fixed: remove it, or remove choose_exponent")
        if "train_ranknet" in own:
            self._check_scores()

    def _check_scores(self) -> None:
        if not any(True for _ in self.net.parameters()):
            raise UserError("`blocks=0` and `learned_exponent=null` leave nothing to train: remove train_ranknet")
        name, has_folds = type(self.inner).__name__, any(isinstance(part, OutOfFold) for part in self.inner.modules())
        if self.scores == "out_of_fold" and not isinstance(self.inner, OutOfFold):
            raise UserError(f"{name} has no out_of_fold scores: set `scores=held_out` or `scores=validation`")
        if self.scores == "held_out" and has_folds:
            raise UserError(f"{name} is fitted to all training documents: set `scores` to another value than held_out")

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        return self.reranked(self.inner.rank(features, self.depth(k)), k)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        found = self.inner.rankings(features, self.depth(k))
        own = {"": self.reranked(found[""], k)}
        if not self.measure_inner:
            return own
        parts = {f"inner/{name}" if name else "inner": truncate(ranking, k) for name, ranking in found.items()}
        if self.is_trained and self.power:
            own["network"] = self.reranked(found[""], k, power=0)
        return own | parts

    @torch.no_grad()
    def reranked(self, ranking: Ranking, k: int, power: float | None = None) -> Ranking:
        """Re-rank the candidates of the inner head's ranking; its further labels follow, up to k."""
        power = self.power if power is None else power
        first, rest = truncate(ranking, self.candidates), ranking.labels[:, self.candidates : k]
        with torch.autocast(ranking.scores.device.type, enabled=False):
            first = self._through_network(first)
            if power:
                first = by_propensity(first, self.inverse_propensity, power)
        below = ranking.scores[:, self.candidates : k].minimum(first.scores[:, -1:])
        return truncate(Ranking(torch.cat([first.scores, below], dim=1), torch.cat([first.labels, rest], dim=1)), k)

    def _through_network(self, ranking: Ranking) -> Ranking:
        if not self.is_trained:
            return ranking
        scores = self.net(ranking.labels, self._base_scores(ranking.scores))
        ordered = sort_by_score(scores, ranking.labels)
        if self.scale == "logits":
            return Ranking(ordered.scores.sigmoid() * (ordered.labels >= 0), ordered.labels)
        factors = ordered.scores.exp() if self.scale == "log_probabilities" else ordered.scores
        return as_probabilities(Ranking(factors, ordered.labels), self.largest_factor)

    def _base_scores(self, probabilities: Tensor) -> Tensor:
        if self.scale == "logits":
            return logits_of(probabilities, NEAR).float()
        return (
            probabilities.float().clamp_min(SMALLEST).log()
            if self.scale == "log_probabilities"
            else probabilities.float()
        )

    # --- documents of the stages

    def base_documents(self, targets: Targets, seed: int) -> Tensor:
        """Training documents without those that are held out for the network."""
        self.leaves_out = True
        return self._split(targets, seed)[1]

    def held_out_documents(self, targets: Targets, seed: int) -> Tensor:
        """Training documents that are held out for the network."""
        return self._split(targets, seed)[0]

    def _split(self, targets: Targets, seed: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
        size = max(round(self.held_out * len(order)), 1)
        return order[:size].sort().values, order[size:].sort().values

    # --- transitions

    @torch.no_grad()
    def train_ranknet(self, ctx: TransitionContext) -> None:
        """Train the network on the inner head's scores of documents that it was not trained on."""
        self._check_scores()
        ranking, targets = self._scored(ctx)
        self.learn(ranking, targets, ctx)

    def learn(self, ranking: Ranking, targets: Targets, ctx: TransitionContext) -> None:
        """Train the network on candidates (documents, K) of the inner head."""
        settings, generator = self.training_settings, torch.Generator().manual_seed(ctx.seed)
        margin = MARGINS[self.scale] if settings.margin is None else settings.margin
        ranking = truncate(ranking, self.candidates)
        candidates = Candidates(ranking.labels, self._base_scores(ranking.scores), relevant(ranking.labels, targets))
        counts, weights = self.counts.to(self.trained.device), self.inverse_propensity
        log = train_ranknet(self.net, candidates, counts, settings, margin, generator, ctx, weights)
        self.trained.fill_(True)
        self._sync_flags()
        ctx.log({f"ranknet/{name}": value for name, value in log.items()})

    def _scored(self, ctx: TransitionContext) -> tuple[Ranking, Targets]:
        if self.scores == "out_of_fold":
            assert isinstance(self.inner, OutOfFold)
            ranking = self.inner.out_of_fold(ctx, self.folds, self.depth(1))
            return Ranking(ranking.scores.cpu(), ranking.labels.cpu()), ctx.train_targets().to("cpu")
        if self.scores == "validation":
            targets = ctx.val_targets().to("cpu")
            return self._collect(ctx, ctx.val_features(), torch.arange(len(targets))), targets
        if not self.leaves_out:
            raise UserError(
                "`scores=held_out`: the inner head was trained on all documents; give its stages "
                "`documents: base_documents`"
            )
        targets = ctx.train_targets().to("cpu")
        rows = self.held_out_documents(targets, ctx.seed)
        return self._collect(ctx, ctx.train_features(rows), rows), targets.take(rows)

    def _collect(self, ctx: TransitionContext, pairs: Iterable[tuple[Features, Batch]], rows: Tensor) -> Ranking:
        """Gather the candidates of the documents `rows`, ascending, on the CPU of every process."""
        device = self.trained.device
        labels = torch.zeros(len(rows), self.depth(1), dtype=torch.int32)
        scores = torch.zeros(labels.shape)
        for features, batch in pairs:
            ranking = self.inner.rank(features, labels.shape[1])
            places = torch.searchsorted(rows, batch.rows.cpu().contiguous())
            labels[places], scores[places] = ranking.labels.int().cpu() + 1, ranking.scores.float().cpu()
        for part in (labels, scores):  # rows of other processes are zeros
            for first in range(0, len(part), STEP):
                part[first : first + STEP] = ctx.sum(part[first : first + STEP].to(device)).cpu()
        return Ranking(scores, labels - 1)

    @torch.no_grad()
    def choose_exponent(self, ctx: TransitionContext) -> None:
        """Choose the exponent, of 0, 0.05, ..., 1, with the highest `gain` at an acceptable `keep`."""
        depth = self.depth(max(k for _, k in self.metrics))
        self.choose(((self.inner.rank(f, depth), batch.targets) for f, batch in ctx.val_features()), ctx)

    def choose(self, pairs: Iterable[tuple[Ranking, Targets]], ctx: TransitionContext) -> None:
        """Choose the exponent from the inner head's rankings of this process's documents."""
        device = self.trained.device
        sums = torch.zeros(len(GRID), len(self.metrics), 2, dtype=torch.float64)
        for ranking, targets in pairs:
            first = Ranking(
                ranking.scores[:, : self.candidates].to(device), ranking.labels[:, : self.candidates].to(device)
            )
            ranking = self._through_network(first)
            sums += exponent_sums(ranking, targets, self.inverse_propensity, self.metric_weights, self.metrics)
        reached, possible = ctx.sum(sums.to(device)).cpu().unbind(-1)
        gain, keep = (reached / possible.clamp_min(EPSILON)).unbind(1)
        best = best_exponent(gain, keep, self.allowed_loss)
        self.exponent.fill_(GRID[best])
        self._sync_flags()
        log = {"exponent": GRID[best]}
        for (name, k), values in zip(self.metrics, (gain, keep), strict=True):
            log |= {f"{name}@{k}/before": float(values[0]), f"{name}@{k}/after": float(values[best])}
        ctx.log({f"rerank/{name}": value for name, value in log.items()})

    @torch.no_grad()
    def learn_labels(
        self,
        space: LabelSpace,
        examples: Iterable[tuple[Features, Targets]],
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.inner.learn_labels(space, examples, texts)
        self._set_space(space)
        self.net.grow(self.inverse_propensity)


def sync_flags(head: Rerank, _: object) -> None:
    """Runs after all parts of a state dict are loaded."""
    head._sync_flags()
