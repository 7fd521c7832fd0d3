"""Two heads as one: what words say in a linear model, beside what an encoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from backbones.base import Features
from datamodules.batch import FREQUENCY_CLASSES, LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext, check_low, probabilities
from heads.calibration import NEAR, logits_of
from heads.measures import cut, in_order, relevant

RIDGE = 1e-4  # on the squared distance from the start: decides only what the pairs leave open
FEW = 20  # right pairs without which a class takes the weights of all labels together
PARTS, START = ("inner", "engine", "bias"), (1.0, 1.0, 0.0)


class Wide(Head):
    """Adds the scores of a second head, such as a linear engine, to those of the first.

    The score of a label is the sigmoid of w1 logit(p1) + w2 logit(p2) + b, over the candidates of both; a label that
    one of them has not ranked has the lowest score of its list there. `fit_weights` finds w1, w2 and b.

    Args:
        inner: one head; its transitions go by names such as `inner.fit`.
        engine: the other one, likewise: `engine.fit`.
        by: one set of weights for all labels, or one for each class of `LabelSpace.frequency_class`.
        candidates: best labels of each that are considered.
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
    ) -> None:
        super().__init__(dim, space)
        check_low(1, candidates=candidates)
        self.inner, self.engine = inner(dim, space), engine(dim, space)
        self.needs_tokens = self.inner.needs_tokens or self.engine.needs_tokens
        self.needs_layers = max(self.inner.needs_layers, self.engine.needs_layers)
        self.candidates = candidates
        classes = space.frequency_class()[: space.num_labels]
        self.classes = ("all",) if by == "all" else FREQUENCY_CLASSES
        self.register_buffer("label_class", classes * (by == "frequency"), persistent=False)
        self.register_buffer("weights", torch.tensor(START).repeat(len(self.classes), 1))

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "fit_weights" in transitions[:-1] and any("." in t for t in transitions[transitions.index("fit_weights") :]):
            raise UserError("fit_weights goes by the scores of both heads: name it after their own transitions")

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """The inner head's and, where the other has something that the stage trains, that one's too."""
        terms = self.inner.loss(features, targets, stage)
        if any(parameter.requires_grad for parameter in self.engine.parameters()):
            others = self.engine.loss(features, targets, stage)
            total = terms["loss"] + others["loss"]
            terms = terms | {f"engine_{name}": value for name, value in others.items()} | {"loss": total}
        return terms

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        return self.inner.checks(features, targets)

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        depth = self._depth(k)
        return self._mixed(self.inner.rank(features, depth), self.engine.rank(features, depth), k)

    def weight_norms(self) -> Tensor | None:
        return self.inner.weight_norms()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        return self.inner.attention_weights(features, labels)

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        depth = self._depth(k)
        found = {name: head.rankings(features, depth) for name, head in self.inner_heads.items()}
        own = {"": self._mixed(found["inner"][""], found["engine"][""], k)}
        for part, rankings in found.items():
            own |= {f"{part}/{name}" if name else part: cut(ranking, k) for name, ranking in rankings.items()}
        return own

    def _depth(self, k: int) -> int:
        return max(min(self.candidates, self.num_labels), k)

    def _mixed(self, one: Ranking, other: Ranking, k: int) -> Ranking:
        if bool(self.inner.pending) != bool(self.engine.pending):  # a validation before both are there
            return cut(one if self.engine.pending else other, k)
        labels, logits = union(one, other)
        weights = self.weights[self.label_class[labels.clamp_min(0)]]  # (batch, candidates, 3)
        scores = (weights[..., :2] * logits).sum(-1) + weights[..., 2]
        ranking = cut(in_order(scores, labels), k)
        return Ranking(probabilities(ranking.scores) * (ranking.labels >= 0), ranking.labels)

    # --- the weights

    @torch.no_grad()
    def fit_weights(self, ctx: TransitionContext) -> None:
        """Logistic regression of right and wrong candidates of the validation documents."""
        pairs = [self._pairs(features, batch.targets) for features, batch in ctx.val_features()]
        logits = torch.cat([self.weights.new_zeros(0, 2), *(part for part, _, _ in pairs)])
        hits = torch.cat([self.label_class.new_zeros(0, dtype=torch.bool), *(part for _, part, _ in pairs)])
        classes = torch.cat([self.label_class[:0], *(part for _, _, part in pairs)])
        together, right = newton(logits, hits, ctx.sum)
        if right == 0:
            raise UserError("fit_weights: no validation document has a label that one of the heads has ranked for it")
        log: dict[str, float] = {}
        for number, name in enumerate(self.classes):
            mine = classes == number
            weights, right = (together, right) if name == "all" else newton(logits[mine], hits[mine], ctx.sum)
            self.weights[number] = (weights if right >= FEW else together).to(self.weights)
            log |= {
                f"wide/{name}/{part}": float(value) for part, value in zip(PARTS, self.weights[number], strict=True)
            }
        ctx.log(log)

    def _pairs(self, features: Features, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (pairs, 2) of all candidates, whether they are right, and their classes."""
        depth = self._depth(1)
        labels, logits = union(self.inner.rank(features, depth), self.engine.rank(features, depth))
        known = labels >= 0
        return logits[known], relevant(labels, targets)[known], self.label_class[labels[known]]


def union(one: Ranking, other: Ranking) -> tuple[Tensor, Tensor]:
    """Candidates (batch, K) of two rankings, -1 in place of repeats, and logits by both, (batch, K, 2)."""
    repeated = look_up(one, other.labels)[1]
    labels = torch.cat([one.labels, other.labels.masked_fill(repeated, -1)], dim=1)
    logits = [logits_of(look_up(ranking, labels)[0], NEAR).float() for ranking in (one, other)]
    return labels, torch.stack(logits, dim=-1)


def look_up(ranking: Ranking, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores that labels (batch, K) have in a ranking, its lowest where they are not in it; and whether they are."""
    ordered, by_label = ranking.labels.sort(dim=1)
    at = torch.searchsorted(ordered, labels.contiguous()).clamp_max(ordered.shape[1] - 1)
    there = (ordered.gather(1, at) == labels) & (labels >= 0)
    scores = ranking.scores.gather(1, by_label.gather(1, at))
    filled = ranking.scores.masked_fill(ranking.labels < 0, torch.inf)
    lowest = filled.amin(dim=1, keepdim=True)
    return torch.where(there, scores, lowest.where(lowest.isfinite(), 0.0)), there


def newton(logits: Tensor, hits: Tensor, total: Callable[[Tensor], Tensor], steps: int = 50) -> tuple[Tensor, float]:
    """Weights (3,) double of a logistic regression, and how many pairs are right: `total` adds up all processes.

    Sums are all that processes exchange, and all of them decide by these: they do the same steps.
    """
    x = torch.cat([logits.double(), logits.new_ones(len(logits), 1).double()], dim=1)
    y = hits.double()
    start = x.new_tensor(START)
    size, right = total(torch.stack([y.new_tensor(len(y)), y.sum()])).tolist()
    weights = start.clone()
    loss = _loss(x, y, weights, start, size, total)
    for _ in range(steps if right else 0):
        probable = (x @ weights).sigmoid()
        slope = probable * (1 - probable)
        sums = total(torch.cat([(x.T @ (probable - y))[:, None], x.T @ (slope[:, None] * x)], dim=1))
        gradient = sums[:, 0] / size + RIDGE * (weights - start)
        step = torch.linalg.solve(sums[:, 1:] / size + RIDGE * torch.eye(3).to(x), gradient)
        if float(gradient @ step) < 1e-16:
            break
        scale, reached = 1.0, loss
        while scale > 1e-6 and not (reached := _loss(x, y, weights - scale * step, start, size, total)) < loss:
            scale /= 2
        if not reached < loss:
            break
        weights, loss = weights - scale * step, reached
    return weights, right


def _loss(
    x: Tensor, y: Tensor, weights: Tensor, start: Tensor, size: float, total: Callable[[Tensor], Tensor]
) -> float:
    scores = x @ weights
    pairs = torch.nn.functional.softplus(scores).sum() - (scores * y).sum()
    return float(total(pairs)) / max(size, 1) + RIDGE / 2 * float((weights - start).square().sum())
