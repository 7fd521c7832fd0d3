"""Frequent and rare labels by two heads that are trained apart, and one ranking of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from backbones.base import Features
from backbones.per_level import PerLevel
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext, check_low
from heads.calibration import fit_sigmoid, logits_of
from heads.measures import relevant
from heads.parts import Part

HEAD, TAIL = "head", "tail"


class Decoupled(Head):
    """A head for the most frequent labels and one for all others, each trained on the documents of its own labels.

    After "Improving Tail Label Prediction for Extreme Multi-label Learning" (2020, section 3.3): with `TailAugment` it
    is Taug; with a network as `head` and a linear model as `tail` it is LTMCP. Neither part knows documents without
    its labels, and their scores have no common scale: `calibrate` finds one on validation documents.

    Args:
        head: what ranks the frequent labels; its transitions go by names such as `head.fit`.
        tail: what ranks the others.
        fraction: of the labels are frequent, rounded down (tau); a part that no label is left for is not there.
        head_stage: stage that trains the first part alone; stages of other names train both.
        tail_stage: stage that trains the second part alone.
        all_documents: each part learns from all documents, those without its labels too; in the paper from those that
            have one alone, so that it has never seen where to be silent.
        layer_per_part: `head` reads the first layer of the backbone and `tail` the second: two encoders of `PerLevel`.
        candidates: so many labels of each part, in each validation document, are what `calibrate` learns from.
    """

    slope: Tensor  # (2,) a of p = sigmoid(a * logit + b), of head and tail
    shift: Tensor  # (2,) b
    calibrated: Tensor  # whether they have been found

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        head: Callable[[int, LabelSpace], Head],
        tail: Callable[[int, LabelSpace], Head],
        fraction: float = 0.1,
        head_stage: str = HEAD,
        tail_stage: str = TAIL,
        all_documents: bool = False,
        layer_per_part: bool = False,
        candidates: int = 100,
    ) -> None:
        super().__init__(dim, space)
        if not 0 <= fraction <= 1:
            raise UserError(f"--model.head.fraction={fraction} is not between 0 and 1")
        check_low(1, candidates=candidates)
        self.fraction, self.candidates, self.stages = fraction, candidates, {head_stage: HEAD, tail_stage: TAIL}
        if len(self.stages) < 2:
            raise UserError(f"--model.head.head_stage={head_stage} is the tail_stage too: give them different names")
        first = int(space.head_by_fraction(fraction).sum())
        if first:
            self.head = Part(dim, space, head, 0, first, 1 if layer_per_part else None, all_documents)
        if first < space.num_labels:
            layer = 2 if layer_per_part else None
            self.tail = Part(dim, space, tail, first, space.num_labels, layer, all_documents)
        self.needs_tokens = any(part.needs_tokens for part in self.parts.values())
        self.needs_layers = max(2 * layer_per_part, *(part.needs_layers for part in self.parts.values()))
        self.register_buffer("slope", torch.ones(2, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("calibrated", torch.tensor(False))

    @property
    def parts(self) -> dict[str, Part]:
        return {name: part for name, part in self.named_children() if isinstance(part, Part)}

    def __getattr__(self, name: str) -> Any:
        if name in (HEAD, TAIL) and name not in self._modules:
            raise UserError(
                f"--model.head.fraction={self.fraction} of {self.num_labels:,} labels leaves none for {name!r}: "
                "choose another, or leave its stage out"
            )
        return super().__getattr__(name)

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "calibrate" in transitions and any("." in t for t in transitions[transitions.index("calibrate") :]):
            raise UserError("calibrate goes by the scores of both parts: name it after their own transitions")

    # --- documents of the stages

    def head_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a head label, or all."""
        found: Tensor = self.head.documents(targets)
        return found

    def tail_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a tail label, or all; those with labels of both kinds belong to both."""
        found: Tensor = self.tail.documents(targets)
        return found

    # --- transitions

    def start_head(self, ctx: TransitionContext) -> None:
        """With an encoder for each part: that of `tail` does not run yet."""
        self._start(0, ctx)

    def start_tail(self, ctx: TransitionContext) -> None:
        """With an encoder for each part: that of `tail` begins with the weights of the other."""
        self._start(1, ctx)

    def _start(self, part: int, ctx: TransitionContext) -> None:
        if not isinstance(ctx.backbone, PerLevel) or not any(part.layer for part in self.parts.values()):
            raise UserError("start_head and start_tail need the backbone PerLevel and --model.head.layer_per_part=true")
        ctx.backbone.begin(part)

    @torch.no_grad()
    def calibrate(self, ctx: TransitionContext) -> None:
        """Platt scaling of each part: on all validation documents, so that it learns where to be silent."""
        scores: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        for features, batch in ctx.val_features():
            for name, part in self.parts.items():
                best = part.rank(features, min(self.candidates, part.num_labels))
                known = best.labels >= 0
                pairs = [logits_of(best.scores), relevant(best.labels, batch.targets).double()]
                scores[name].append(torch.stack(pairs)[:, known])
        for place, (name, found) in enumerate(scores.items(), start=HEAD not in scores):
            logits, hits = torch.cat([self.slope.new_zeros(2, 0), *found], dim=1)
            self.slope[place], self.shift[place] = fit_sigmoid(logits, hits, ctx.sum)
            log = {"slope": float(self.slope[place]), "shift": float(self.shift[place])}
            ctx.log({f"calibrate/{name}_{what}": value for what, value in log.items()})
        self.calibrated.fill_(True)

    # --- losses and rankings

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        if stage in self.stages:
            part: Part = getattr(self, self.stages[stage])
            return part.loss(features, targets, stage)
        terms = {name: part.loss(features, targets, stage)["loss"] for name, part in self.parts.items()}
        return {"loss": torch.stack(list(terms.values())).sum()} | (terms if len(terms) > 1 else {})

    def rank(self, features: Features, k: int) -> Ranking:
        rankings = [self._ranked(place, part, features, k) for place, part in self._ready()]
        if len(rankings) == 1:
            return rankings[0]
        scores = torch.cat([ranking.scores for ranking in rankings], dim=1)
        labels = torch.cat([ranking.labels for ranking in rankings], dim=1)
        # stable: the parts' own order stays where scores are equal, as those of sure labels are
        best = scores.masked_fill(labels < 0, -1).argsort(dim=1, descending=True, stable=True)[:, :k]
        return Ranking(scores.gather(1, best), labels.gather(1, best))

    def _ready(self) -> list[tuple[int, Part]]:
        """Parts that can rank, with their places: one that waits for its transition has nothing to say yet."""
        parts = [(int(name == TAIL), part) for name, part in self.parts.items()]
        return [(place, part) for place, part in parts if not part.pending] or parts

    def _ranked(self, place: int, part: Part, features: Features, k: int) -> Ranking:
        best = part.rank(features, k)
        if not self.calibrated:
            return best
        scores = (self.slope[place] * logits_of(best.scores) + self.shift[place]).sigmoid().float()
        return Ranking(scores * (best.labels >= 0), best.labels)

    def weight_norms(self) -> Tensor | None:
        norms = [part.inner.weight_norms() for part in self.parts.values()]
        return None if any(part is None for part in norms) else torch.cat([part for part in norms if part is not None])

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        parts = [(name, part) for name, part in self.parts.items() if not part.pending]
        return {f"{n}/{what}": value for n, part in parts for what, value in part.checks(features, targets).items()}
