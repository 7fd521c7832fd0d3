"""Two separately trained heads for frequent and rare labels, merged into one ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from backbones.base import Features
from backbones.per_level import PerLevel
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext
from heads.tail.label_subset import LabelSubset
from heads.tail.platt import fit_sigmoid, logits_of
from heads.tail.rankings import relevant, sort_by_score, truncate
from zoo.core.errors import UserError, check_low, check_range, check_width

HEAD, TAIL = "head", "tail"


class Decoupled(Head):
    """Taug's decoupling: one head for frequent labels and one for all others, each trained on its own documents.

    "Improving Tail Label Prediction for Extreme Multi-label Learning" (https://openreview.net/forum?id=hUAmiQCeUGm),
    section 3.3. Together with `TailAugment` it is Taug; with a neural `head` and a linear `tail` it is LTMCP. The paper
    merges the raw scores of both parts, although neither has seen documents without its labels: tail labels then gain
    rank. The transition `calibrate`, which is ours, brings them to one scale on validation documents, and takes part of
    that gain back.

    Args:
        head: head of the frequent labels; its transitions have dotted names, such as `head.fit`.
        tail: head of the other labels.
        fraction: share of the labels that are frequent, rounded down (tau). A part without labels does not exist.
        tail_labels: number of rarest labels that are the tail, as in the LTMCP rows of HTTN's tables (l_tail); takes
            precedence over `fraction`.
        head_stage: name of the stage that trains only `head`; stages with other names train both parts.
        tail_stage: name of the stage that trains only `tail`.
        all_documents: train each part on all documents. The paper uses only documents with a label of the part.
        layer_per_part: `head` reads the first layer of the backbone and `tail` the second: two encoders of `PerLevel`.
        candidates: number of labels of each part, per validation document, that `calibrate` is fitted to.
        calibrate: False merges raw scores, as in the paper; the transition `calibrate` then does nothing.
    """

    slope: Tensor  # (2,) a of p = sigmoid(a * logit + b), of head and tail
    shift: Tensor  # (2,) b
    calibrated: Tensor  # () bool, `calibrate` has run

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        head: Callable[[int, LabelSpace], Head],
        tail: Callable[[int, LabelSpace], Head],
        fraction: float = 0.1,
        tail_labels: int | None = None,
        head_stage: str = HEAD,
        tail_stage: str = TAIL,
        all_documents: bool = False,
        layer_per_part: bool = False,
        candidates: int = 100,
        calibrate: bool = True,
    ) -> None:
        super().__init__(dim, space)
        check_range(0, 1, fraction=fraction)
        check_width(candidates=candidates)
        check_low(0, tail_labels=tail_labels)
        self.candidates, self.stages = candidates, {head_stage: HEAD, tail_stage: TAIL}
        self.raw_scores = not calibrate
        if len(self.stages) < 2:
            raise UserError(f"`head_stage={head_stage}` is the `tail_stage` too: give them different names")
        is_head = space.head_by_fraction(fraction) if tail_labels is None else space.head_by_tail_size(tail_labels)
        self.split = f"fraction={fraction}" if tail_labels is None else f"tail_labels={tail_labels}"
        split, layers = int(is_head.sum()), (1, 2) if layer_per_part else (None, None)
        if split:
            self.head = LabelSubset(dim, space, head, 0, split, layers[0], all_documents)
        if split < space.num_labels:
            self.tail = LabelSubset(dim, space, tail, split, space.num_labels, layers[1], all_documents)
        self.needs_tokens = any(part.needs_tokens for part in self.parts.values())
        self.needs_layers = max(2 * layer_per_part, *(part.needs_layers for part in self.parts.values()))
        self.register_buffer("slope", torch.ones(2, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("calibrated", torch.tensor(False))

    @property
    def parts(self) -> dict[str, LabelSubset]:
        return {name: part for name, part in self.named_children() if isinstance(part, LabelSubset)}

    def __getattr__(self, name: str) -> Any:
        if name in (HEAD, TAIL) and name not in self._modules:
            raise UserError(
                f"`{self.split}` of {self.num_labels:,} labels leaves none for {name!r}: change it, or remove the stage"
            )
        return super().__getattr__(name)

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "calibrate" in transitions and any("." in t for t in transitions[transitions.index("calibrate") :]):
            raise UserError("calibrate needs the scores of both parts: put it after their own transitions")

    # --- documents of the stages

    def head_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a head label; all with `all_documents`."""
        rows: Tensor = self.head.documents(targets)
        return rows

    def tail_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a tail label, which may have head labels too; all with `all_documents`."""
        rows: Tensor = self.tail.documents(targets)
        return rows

    # --- transitions

    def start_head(self, ctx: TransitionContext) -> None:
        """Run only the encoder of `head`, with one encoder per part."""
        self._start(0, ctx)

    def start_tail(self, ctx: TransitionContext) -> None:
        """Run the encoder of `tail` too, initialized from that of `head`."""
        self._start(1, ctx)

    def _start(self, part: int, ctx: TransitionContext) -> None:
        if not isinstance(ctx.backbone, PerLevel) or not any(part.layer for part in self.parts.values()):
            raise UserError("start_head and start_tail need the backbone PerLevel and `layer_per_part=True`")
        ctx.backbone.begin(part)

    @torch.no_grad()
    def calibrate(self, ctx: TransitionContext) -> None:
        """Fit Platt scaling of each part on all validation documents, with or without labels of the part."""
        if self.raw_scores:
            return
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
            part: LabelSubset = getattr(self, self.stages[stage])
            return part.loss(features, targets, stage)
        terms = {name: part.loss(features, targets, stage)["loss"] for name, part in self.parts.items()}
        return {"loss": torch.stack(list(terms.values())).sum()} | (terms if len(terms) > 1 else {})

    def rank(self, features: Features, k: int) -> Ranking:
        rankings = [self._ranked(place, part, features, k) for place, part in self._ready()]
        if len(rankings) == 1:
            return rankings[0]
        scores = torch.cat([ranking.scores for ranking in rankings], dim=1)
        labels = torch.cat([ranking.labels for ranking in rankings], dim=1)
        return truncate(sort_by_score(scores, labels), k)

    def _ready(self) -> list[tuple[int, LabelSubset]]:
        """Parts that can rank already, with their indices; all of them if none can."""
        parts = [(int(name == TAIL), part) for name, part in self.parts.items()]
        return [(place, part) for place, part in parts if not part.pending] or parts

    def _ranked(self, place: int, part: LabelSubset, features: Features, k: int) -> Ranking:
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
