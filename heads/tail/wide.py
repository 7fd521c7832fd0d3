"""Ensemble of two heads, such as a neural one and a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext, probabilities
from heads.tail.platt import NEAR, fit_logistic, logits_of
from heads.tail.rankings import CandidateHead, relevant, sort_by_score, truncate
from zoo.core.errors import UserError
from zoo.core.metrics import FREQUENCY_CLASSES

RIDGE = 1e-4  # weak penalty on the distance from START: decides only what the data leave open
FEW = 20  # correct pairs below which a class uses the weights of all labels together
PARTS, START = ("inner", "engine", "bias"), (1.0, 1.0, 0.0)


class Wide(CandidateHead):
    """Combines the scores of a head and a second one, such as a linear engine, by logistic regression.

    The score of a label is sigmoid(w1 logit(p1) + w2 logit(p2) + b), over the candidates of both heads; a label that
    one head has not ranked gets the lowest score of that head's list. `fit_weights` fits w1, w2 and b.

    With a tree head and a linear engine on `features: both`, this is the recipe of X-Transformer (Chang et al. 2020,
    https://arxiv.org/abs/1905.02331) and XR-Transformer (Zhang et al. 2021, https://arxiv.org/abs/2110.00685): the tree
    head (matcher) trains the encoder, and a linear model (ranker) on TF-IDF beside the document vectors ranks. The
    former adds the scores of both, the latter uses those of the ranker alone: `ranked_by: engine`.

    Args:
        inner: first head; its transitions have dotted names, such as `inner.fit`.
        engine: second head, likewise: `engine.fit`.
        by: one set of weights for all labels, or one per class of `LabelSpace.frequency_class`.
        candidates: number of best labels of each head that are considered.
        ranked_by: `engine` ranks by the second head alone, once it is fitted; the combination is measured as `both`.
    """

    weights: Tensor  # (classes, 3) w1, w2 and b
    label_class: Tensor  # (num_labels,)

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        inner: Callable[[int, LabelSpace], Head],
        engine: Callable[[int, LabelSpace], Head],
        by: Literal["all", "frequency"] = "all",
        candidates: int = 200,
        ranked_by: Literal["both", "engine"] = "both",
    ) -> None:
        super().__init__(dim, space, inner, candidates)
        self.ranked_by = ranked_by
        self.engine = engine(dim, space)
        self.needs_tokens = self.inner.needs_tokens or self.engine.needs_tokens
        self.needs_layers = max(self.inner.needs_layers, self.engine.needs_layers)
        classes = space.frequency_class()[: space.num_labels]
        self.classes = ("all",) if by == "all" else FREQUENCY_CLASSES
        self.register_buffer("label_class", classes * (by == "frequency"), persistent=False)
        self.register_buffer("weights", torch.tensor(START).repeat(len(self.classes), 1))

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "fit_weights" in transitions and self.ranked_by == "engine":
            raise UserError("fit_weights has no effect with `ranked_by=engine`: remove one of them")
        if "fit_weights" in transitions[:-1] and any("." in t for t in transitions[transitions.index("fit_weights") :]):
            raise UserError("fit_weights needs the scores of both heads: put it after their own transitions")

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Loss of the inner head, plus that of the engine if the stage trains some of its parameters."""
        terms = self.inner.loss(features, targets, stage)
        if any(parameter.requires_grad for parameter in self.engine.parameters()):
            others = self.engine.loss(features, targets, stage)
            total = terms["loss"] + others["loss"]
            terms = terms | {f"engine_{name}": value for name, value in others.items()} | {"loss": total}
        return terms

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        if self.ranked_by == "engine" and not self.engine.pending:
            return self.engine.rank(features, k)
        depth = self.depth(k)
        return self._mixed(self.inner.rank(features, depth), self.engine.rank(features, depth), k)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        depth = self.depth(k)
        found = {name: head.rankings(features, depth) for name, head in self.inner_heads.items()}
        own = {"": self._mixed(found["inner"][""], found["engine"][""], k)}
        for part, rankings in found.items():
            own |= {f"{part}/{name}" if name else part: truncate(ranking, k) for name, ranking in rankings.items()}
        if self.ranked_by == "engine" and not self.engine.pending:
            return own | {"": own.pop("engine"), "both": own[""]}
        return own

    def _mixed(self, one: Ranking, other: Ranking, k: int) -> Ranking:
        if bool(self.inner.pending) != bool(self.engine.pending):  # validation before both are trained
            return truncate(one if self.engine.pending else other, k)
        labels, logits = union(one, other)
        weights = self.weights[self.label_class[labels.clamp_min(0)]]  # (batch, candidates, 3)
        scores = (weights[..., :2] * logits).sum(-1) + weights[..., 2]
        ranking = truncate(sort_by_score(scores, labels), k)
        return Ranking(probabilities(ranking.scores) * (ranking.labels >= 0), ranking.labels)

    # --- the weights

    @torch.no_grad()
    def fit_weights(self, ctx: TransitionContext) -> None:
        """Fit the weights to the candidates of the validation documents by logistic regression."""
        pairs = [self._pairs(features, batch.targets) for features, batch in ctx.val_features()]
        logits = torch.cat([self.weights.new_zeros(0, 2), *(part for part, _, _ in pairs)])
        hits = torch.cat([self.label_class.new_zeros(0, dtype=torch.bool), *(part for _, part, _ in pairs)])
        classes = torch.cat([self.label_class[:0], *(part for _, _, part in pairs)])
        together, right = fit_pairs(logits, hits, ctx.sum)
        if right == 0:
            raise UserError("fit_weights: none of the candidates of the validation documents is correct")
        log: dict[str, float] = {}
        for i, name in enumerate(self.classes):
            mine = classes == i
            weights, right = (together, right) if name == "all" else fit_pairs(logits[mine], hits[mine], ctx.sum)
            self.weights[i] = (weights if right >= FEW else together).to(self.weights)
            log |= {f"wide/{name}/{part}": float(value) for part, value in zip(PARTS, self.weights[i], strict=True)}
        ctx.log(log)

    def _pairs(self, features: Features, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (pairs, 2) of all candidates, whether they are correct, and their classes."""
        depth = self.depth(1)
        labels, logits = union(self.inner.rank(features, depth), self.engine.rank(features, depth))
        known = labels >= 0
        return logits[known], relevant(labels, targets)[known], self.label_class[labels[known]]


def union(one: Ranking, other: Ranking) -> tuple[Tensor, Tensor]:
    """Candidates (batch, K) of two rankings, with -1 for duplicates, and their logits in both, (batch, K, 2)."""
    repeated = look_up(one, other.labels)[1]
    labels = torch.cat([one.labels, other.labels.masked_fill(repeated, -1)], dim=1)
    logits = [logits_of(look_up(ranking, labels)[0], NEAR).float() for ranking in (one, other)]
    return labels, torch.stack(logits, dim=-1)


def look_up(ranking: Ranking, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of labels (batch, K) in a ranking, its lowest score if absent, and whether they are present."""
    ordered, by_label = ranking.labels.sort(dim=1)
    at = torch.searchsorted(ordered, labels.contiguous()).clamp_max(ordered.shape[1] - 1)
    there = (ordered.gather(1, at) == labels) & (labels >= 0)
    scores = ranking.scores.gather(1, by_label.gather(1, at))
    filled = ranking.scores.masked_fill(ranking.labels < 0, torch.inf)
    lowest = filled.amin(dim=1, keepdim=True)
    return torch.where(there, scores, lowest.where(lowest.isfinite(), 0.0)), there


def fit_pairs(logits: Tensor, hits: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[Tensor, float]:
    """Weights (3,) double of a logistic regression on pairs, and the number of correct pairs over all processes."""
    inputs, right = F.pad(logits.double(), (0, 1), value=1.0).T, hits.double()
    start = inputs.new_tensor(START)
    size, found = total(torch.stack([right.new_tensor(len(right)), right.sum()])).tolist()
    return fit_logistic(inputs, right, start, total, RIDGE * size) if found else start, found
