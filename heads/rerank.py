"""Re-ranking: the candidates of any head in an order that does rare labels justice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext, check_low
from heads.calibration import NEAR, logits_of
from heads.measures import Measure, cut, in_order, relevant
from heads.propensity import EPSILON, GRID, by_propensity, choice, exponent_sums
from heads.ranknet import Candidates, Process, RankNet, RankNetTraining, train_ranknet

MANY = 50_000  # labels from which on the network is narrow and its gradients are sparse
STEP = 2**14  # documents whose scores are summed over processes at a time


class Rerank(Head):
    """Re-scores the best labels of another head, so that rare ones come forward.

    After "Improving Tail Label Prediction for Extreme Multi-label Learning" (2020). A network F = W2 ReLU(W1 f) + f
    learns, from scores f of documents that the inner head was not trained on, to rank the rare labels of a document
    before the frequent ones (`train_ranknet`). The form without parameters multiplies a probability by r^a, with r
    the label's inverse propensity (`choose_exponent`, or `exponent`): it trades P for PSP. With both, the network
    comes first. A label that is not among the candidates stays out.

    Scores stay within [0, 1], in the order of the ranking: F is cut to it, or its sigmoid, and r^a f is bent into it.

    Args:
        inner: the head that finds candidates; its transitions go by names such as `inner.fit`.
        candidates: so many of its best labels are ranked anew.
        blocks: of the network, one after the other; 0 for none.
        width: of its bottleneck; by default 256, and 64 from 50,000 labels on.
        on: whether f are probabilities or their logits.
        scores: of which documents the network learns: `out_of_fold`, all training documents, each scored by a model
            that has not seen it, for heads that can make these; `held_out`, a share of the training documents that
            no stage may train on, which `documents: base_documents` sees to; `validation`, after which validation
            metrics are of documents that it was trained on. By default the first where the head can, else the last.
        folds: models for `out_of_fold`.
        held_out: share of the training documents for `held_out`.
        ranknet: how the network is trained.
        exponent: a, fixed; by default 0 until `choose_exponent`.
        gain: what `choose_exponent` wants more of on validation documents, P@k or PSP@k ...
        keep: ... and what may fall by no more than ...
        allowed_loss: ... so much.
        measure_inner: measure the inner head's own ranking beside, as `inner`, and, where an exponent follows the
            network, the network's, as `network`.
    """

    trained: Tensor  # whether `train_ranknet` has run
    exponent: Tensor  # a
    inverse_propensity: Tensor  # (num_labels,) r

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        inner: Callable[[int, LabelSpace], Head],
        candidates: int = 100,
        blocks: int = 1,
        width: int | None = None,
        on: Literal["probabilities", "logits"] = "logits",
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
        super().__init__(dim, space)
        check_low(1, candidates=candidates, width=width)
        check_low(0, blocks=blocks, exponent=exponent, allowed_loss=allowed_loss)
        check_low(2, folds=folds)
        if not 0 < held_out < 1:
            raise UserError(f"--model.head.held_out={held_out} is not between 0 and 1")
        self.inner = inner(dim, space)
        self.needs_tokens, self.needs_layers = self.inner.needs_tokens, self.inner.needs_layers
        self.candidates, self.on, self.fixed, self.measure_inner = candidates, on, exponent, measure_inner
        self.scores, self.folds, self.held_out = scores or self._best_scores(), folds, held_out
        self.training_settings, self.allowed_loss = ranknet or RankNetTraining(), allowed_loss
        self.gain, self.keep = Measure.parse(gain, "gain"), Measure.parse(keep, "keep")
        many = space.num_labels - space.added >= MANY  # tables keep their width when labels are added
        self.net = RankNet(space.num_labels, width or (64 if many else 256), blocks, many, on == "logits")
        self.net.requires_grad_(False)
        self.register_buffer("trained", torch.tensor(False))
        self.register_buffer("exponent", torch.tensor(exponent or 0.0))
        self.register_buffer("inverse_propensity", torch.empty(0), persistent=False)
        self.leaves_out = False  # whether a stage has asked for `base_documents`
        self._take_space(space)
        self._note_progress()

    def _take_space(self, space: LabelSpace) -> None:
        self.num_labels, self.counts = space.num_labels, torch.tensor(space.counts, dtype=torch.float)
        self.weights = space.inverse_propensity()  # of known and unseen labels, in double, for measures
        self.inverse_propensity = self.weights[: space.num_labels].float().to(self.trained.device)

    def _best_scores(self) -> Literal["out_of_fold", "validation"]:
        return "out_of_fold" if hasattr(self.inner, "out_of_fold") else "validation"

    def _note_progress(self) -> None:
        """For Python: reading a buffer makes a GPU wait."""
        self.is_trained, self.power = bool(self.trained), round(float(self.exponent), 6)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        # A network of another size was not taken over, and this one has learned nothing.
        self.trained &= all(f"{prefix}net.{name}" in state_dict for name in self.net.state_dict())
        self._note_progress()

    # --- what the inner head does

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return self.inner.loss(features, targets, stage)

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(features, targets)

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        own = [name for name in transitions if not name.startswith("inner.")]
        if not own and not self.is_trained and not self.power:
            raise UserError(
                "Rerank would change nothing: end with a stage that has `on_enter: [train_ranknet]` or "
                "`[choose_exponent]`, or give --model.head.exponent"
            )
        if sorted(transitions, key=self._order_of) != list(transitions):
            raise UserError("re-ranking goes by the scores that it finds: train the inner head, then, of these two, "
                            "train_ranknet and choose_exponent, in this order")  # fmt: skip
        if "choose_exponent" in own and self.fixed is not None:
            raise UserError(f"--model.head.exponent={self.fixed} is fixed: leave it out, or choose_exponent")
        if "train_ranknet" in own:
            self._check_scores()

    @staticmethod
    def _order_of(transition: str) -> int:
        return {"train_ranknet": 1, "choose_exponent": 2}.get(transition, 0)

    def _check_scores(self) -> None:
        if not len(self.net.first):
            raise UserError("--model.head.blocks=0 has no network to train: leave out train_ranknet")
        name, has_folds = type(self.inner).__name__, any(hasattr(part, "out_of_fold") for part in self.inner.modules())
        if self.scores == "out_of_fold" and not hasattr(self.inner, "out_of_fold"):
            raise UserError(f"{name} has no out_of_fold scores: --model.head.scores=held_out or validation does it")
        if self.scores == "held_out" and has_folds:
            raise UserError(f"{name} is fitted to all training documents: take other --model.head.scores than held_out")

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        return self.reranked(self.inner.rank(features, self._depth(k)), k)

    def weight_norms(self) -> Tensor | None:
        return self.inner.weight_norms()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.attention_weights(features, labels)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        found = self.inner.rankings(features, self._depth(k))
        own = {"": self.reranked(found[""], k)}
        if not self.measure_inner:
            return own
        parts = {f"inner/{name}" if name else "inner": cut(ranking, k) for name, ranking in found.items()}
        if self.is_trained and self.power:
            own["network"] = self.reranked(found[""], k, power=0)
        return own | parts

    def _depth(self, k: int) -> int:
        return max(min(self.candidates, self.num_labels), k)

    @torch.no_grad()
    def reranked(self, ranking: Ranking, k: int, power: float | None = None) -> Ranking:
        """The k best of the inner head's labels: its candidates in their new order, then what follows them."""
        power = self.power if power is None else power
        first, rest = cut(ranking, self.candidates), ranking.labels[:, self.candidates : k]
        with torch.autocast(ranking.scores.device.type, enabled=False):
            first = self._through_network(first)
            if power:
                first = by_propensity(first, self.inverse_propensity, power)
        below = ranking.scores[:, self.candidates : k].minimum(first.scores[:, -1:])
        return cut(Ranking(torch.cat([first.scores, below], dim=1), torch.cat([first.labels, rest], dim=1)), k)

    def _through_network(self, ranking: Ranking) -> Ranking:
        if not self.is_trained:
            return ranking
        scores = self.net(ranking.labels, self._base_scores(ranking.scores))
        ordered = in_order(scores, ranking.labels)
        probable = ordered.scores.clamp(0, 1) if self.on == "probabilities" else ordered.scores.sigmoid()
        return Ranking(probable * (ordered.labels >= 0), ordered.labels)

    def _base_scores(self, probabilities: Tensor) -> Tensor:
        return probabilities.float() if self.on == "probabilities" else logits_of(probabilities, NEAR).float()

    # --- documents of the stages

    def base_documents(self, targets: Targets, seed: int) -> Tensor:
        """Training documents but for those that `held_out` keeps for the network."""
        self.leaves_out = True
        return self._split(targets, seed)[1]

    def held_out_documents(self, targets: Targets, seed: int) -> Tensor:
        """Those that it keeps."""
        return self._split(targets, seed)[0]

    def _split(self, targets: Targets, seed: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
        size = max(round(self.held_out * len(order)), 1)
        return order[:size].sort().values, order[size:].sort().values

    # --- transitions

    @torch.no_grad()
    def train_ranknet(self, ctx: TransitionContext) -> None:
        """Train the network on scores that the inner head has given to documents it has not learned from."""
        self._check_scores()
        ranking, targets = self._scored(ctx)
        self.learn(ranking, targets, ctx)

    def learn(self, ranking: Ranking, targets: Targets, ctx: Process) -> None:
        """Train on the inner head's candidates (documents, K), with their labels."""
        settings, generator = self.training_settings, torch.Generator().manual_seed(ctx.seed)
        margin = settings.margin if settings.margin is not None else 0.1 if self.on == "probabilities" else 1.0
        ranking = cut(ranking, self.candidates)
        candidates = Candidates(ranking.labels, self._base_scores(ranking.scores), relevant(ranking.labels, targets))
        counts = self.counts.to(self.trained.device)
        worth = self.inverse_propensity
        log = train_ranknet(self.net, candidates, counts, settings, margin, generator, ctx, worth)
        self.trained.fill_(True)
        self._note_progress()
        ctx.log({f"ranknet/{name}": value for name, value in log.items()})

    def _scored(self, ctx: TransitionContext) -> tuple[Ranking, Targets]:
        if self.scores == "out_of_fold":
            ranking: Ranking = self.inner.out_of_fold(ctx, self.folds, self._depth(1))  # type: ignore[operator]
            return Ranking(ranking.scores.cpu(), ranking.labels.cpu()), ctx.train_targets().to("cpu")
        if self.scores == "validation":
            targets = ctx.val_targets().to("cpu")
            return self._collect(ctx, ctx.val_features(), torch.arange(len(targets))), targets
        if not self.leaves_out:
            raise UserError(
                "--model.head.scores=held_out: no stage has left out documents for it, so the inner head knows all: "
                "give its stages `documents: base_documents`"
            )
        targets = ctx.train_targets().to("cpu")
        rows = self.held_out_documents(targets, ctx.seed)
        return self._collect(ctx, ctx.train_features(rows), rows), targets.take(rows)

    def _collect(self, ctx: TransitionContext, pairs: Iterable[tuple[Features, Batch]], rows: Tensor) -> Ranking:
        """Candidates of the documents `rows`, ascending, on every process, in main memory."""
        device = self.trained.device
        labels = torch.zeros(len(rows), self._depth(1), dtype=torch.int32)
        scores = torch.zeros(labels.shape)
        for features, batch in pairs:
            ranking = self.inner.rank(features, labels.shape[1])
            places = torch.searchsorted(rows, batch.rows.cpu().contiguous())
            labels[places], scores[places] = ranking.labels.int().cpu() + 1, ranking.scores.float().cpu()
        for part in (labels, scores):  # others have filled other rows: here they are zeros
            for first in range(0, len(part), STEP):
                part[first : first + STEP] = ctx.sum(part[first : first + STEP].to(device)).cpu()
        return Ranking(scores, labels - 1)

    @torch.no_grad()
    def choose_exponent(self, ctx: TransitionContext) -> None:
        """Of 0, 0.05, ..., 1 the exponent that gains most on validation documents and costs no more than allowed."""
        depth = self._depth(max(self.gain.k, self.keep.k))
        self.choose(((self.inner.rank(f, depth), batch.targets) for f, batch in ctx.val_features()), ctx)

    def choose(self, pairs: Iterable[tuple[Ranking, Targets]], ctx: Process) -> None:
        """The same from the inner head's candidates, whose sums are those of all processes together."""
        device = self.trained.device
        measures, weights = (self.gain, self.keep), self.weights.to(device)
        sums = torch.zeros(len(measures), len(GRID) + 1, dtype=torch.float64, device=device)
        for ranking, targets in pairs:
            first = Ranking(
                ranking.scores[:, : self.candidates].to(device), ranking.labels[:, : self.candidates].to(device)
            )
            ranking = self._through_network(first)
            sums += exponent_sums(ranking, targets.to(device), self.inverse_propensity, weights, measures)
        total = ctx.sum(sums).cpu()
        values = total[:, :-1] / total[:, -1:].clamp_min(EPSILON)
        best = choice(values[0], values[1], self.allowed_loss)
        self.exponent.fill_(GRID[best])
        self._note_progress()
        log = {"exponent": GRID[best]}
        for measure, of in zip(measures, values.tolist(), strict=True):
            log |= {f"{measure}/before": of[0], f"{measure}/after": of[best]}
        ctx.log({f"rerank/{name}": value for name, value in log.items()})

    # --- labels that come later

    @torch.no_grad()
    def learn_labels(self, space: LabelSpace, examples: Iterable[tuple[Features, Targets]]) -> None:
        self.inner.learn_labels(space, examples)
        self.net.grow(space.num_labels)
        self._take_space(space)
