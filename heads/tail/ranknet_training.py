"""Training of RankNet on the candidates of documents that the base model has not been trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from heads.base import TransitionContext
from heads.tail.ranknet import RankNet, Scale, margin_sums, population_sums
from zoo.core.errors import UserError, check_low, check_range

MARGINS: dict[Scale, float] = {"log_probabilities": 0.25, "logits": 1.0, "probabilities": 0.1}  # defaults of c


@dataclass
class RankNetTraining:
    """Training of RankNet.

    Args:
        steps: number of steps.
        look_every: steps between evaluations on the held-back documents.
        batch_size: documents per step.
        lr: learning rate of Adam for the tables.
        exponent_lr: learning rate of Adam for the exponent.
        margin_weight: weight of the margin term (lambda). Most of its pairs are in order already and add 0 to the mean,
            so it should be above 1.
        margin: margin between true and wrong labels (c). Default: 0.25 on log probabilities, 1 on logits, 0.1 on
            probabilities.
        reduction: `mean` over the pairs of a document, or `sum` as in the paper, where the margin term, which has many
            more pairs, dominates.
        negatives: wrong candidates per document, which the paper samples.
        hard_negatives: half of the wrong candidates are those with the highest scores: `current` ones of the network,
            or those of the `base`, which stop being hard during training; `none` samples all of them.
        held_back: share of the documents used for model selection: the weights with the highest PSP@1 are kept, which
            may be the initial ones. 0 keeps the last ones.
        allowed_loss: largest drop of P@1 on the held-back documents.
    """

    steps: int = 300
    look_every: int = 25
    batch_size: int = 256
    lr: float = 1e-4
    exponent_lr: float = 0.01
    margin_weight: float = 3.0
    margin: float | None = None
    reduction: Literal["mean", "sum"] = "mean"
    negatives: int = 8
    hard_negatives: Literal["current", "base", "none"] = "current"
    held_back: float = 0.2
    allowed_loss: float = 0.005

    def __post_init__(self) -> None:
        whole, least = ("steps", "look_every", "batch_size", "negatives"), ("margin_weight", "margin", "allowed_loss")
        check_low(1, **{f"ranknet.{name}": getattr(self, name) for name in whole})
        check_low(0, **{f"ranknet.{name}": getattr(self, name) for name in least})
        check_low(1e-9, **{f"ranknet.{name}": getattr(self, name) for name in ("lr", "exponent_lr")})
        check_range(0, 1, **{"ranknet.held_back": self.held_back})
        if self.held_back == 1:
            raise UserError("`ranknet.held_back=1` is too high: it must be below 1")


class Candidates(NamedTuple):
    """Candidates and base scores that RankNet is trained on."""

    labels: Tensor  # (documents, K), padded with -1
    scores: Tensor  # (documents, K), on the scale of F
    hits: Tensor  # (documents, K) bool, True on labels of the document

    def take(self, rows: Tensor, device: torch.device) -> Candidates:
        return Candidates(*(part[rows].to(device) for part in self))


def ranknet_terms(
    net: RankNet, batch: Candidates, counts: Tensor, settings: RankNetTraining, margin: float, drawn: Tensor | None
) -> Tensor:
    """Both loss terms, (2,): mean or sum over the pairs of a document, then mean over documents."""
    scores, hits = net(batch.labels, batch.scores), batch.hits
    hardness = {"current": scores.detach(), "base": batch.scores, "none": None}[settings.hard_negatives]
    wrong = chosen_negatives(batch, settings.negatives, drawn, hardness)
    right = hits.sum(1)
    top = hits.float().topk(max(int(right.max()), 1), dim=1)  # columns of true labels, then padding
    mask, positives = top.values > 0, scores.gather(1, top.indices)
    frequency = counts[batch.labels.gather(1, top.indices).clamp_min(0).long()]
    terms = torch.stack(
        [population_sums(positives, frequency, mask), margin_sums(positives, mask, scores, wrong, margin)]
    )
    if settings.reduction == "mean":
        terms = terms / torch.stack([right * (right - 1), right * wrong.sum(1)]).clamp_min(1)
    return terms.sum(1) / (right > 0).sum().clamp_min(1)


def chosen_negatives(batch: Candidates, size: int, drawn: Tensor | None, hardness: Tensor | None) -> Tensor:
    """Wrong candidates, (batch, K) bool: half of `size` are the hardest, if given, the others have the largest `drawn`.

    All wrong candidates without `drawn`.
    """
    wrong = ~batch.hits & (batch.labels >= 0)
    if drawn is None:
        return wrong
    half = size // 2 if hardness is not None else size
    chosen = torch.zeros_like(wrong)
    if hardness is not None:
        order = hardness.masked_fill(~wrong, -torch.inf).argsort(dim=1, descending=True, stable=True)
        chosen = wrong & (order.argsort(dim=1) < size - half)
    places = torch.where(wrong & ~chosen, drawn, -1.0).topk(min(half, wrong.shape[1]), dim=1)
    return chosen.scatter(1, places.indices, chosen.gather(1, places.indices) | (places.values >= 0))


def train_ranknet(
    net: RankNet,
    candidates: Candidates,
    counts: Tensor,
    settings: RankNetTraining,
    margin: float,
    generator: torch.Generator,
    ctx: TransitionContext,
    weights: Tensor | None = None,
) -> dict[str, float]:
    """Train from scratch, on the first process; returns the mean loss terms since the last evaluation.

    `weights` are the inverse propensities of PSP@1; without them the last weights are kept. Documents without both
    true and wrong labels among their candidates are skipped.
    """
    device = counts.device
    rows = (candidates.hits.any(1) & (~candidates.hits & (candidates.labels >= 0)).any(1)).nonzero().flatten()
    if not len(rows):
        raise UserError("RankNet has no training documents: none has true and wrong labels among its candidates")
    net.reset(generator)
    held = rows[:0]
    if weights is not None and ctx.first:
        held, rows = split_rows(rows, settings.held_back, generator)
    best = BestWeights(net, candidates, held, weights, settings.allowed_loss)
    net.requires_grad_(True)
    optimizers = make_optimizers(net, settings)
    log: dict[str, float] = {}
    batches = endless_batches(rows, settings.batch_size, generator)
    for done in ctx.track(range(0, settings.steps, settings.look_every), "training RankNet"):
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        steps = min(settings.look_every, settings.steps - done)
        for part in islice(batches, steps if ctx.first else 0):
            batch = candidates.take(part, device)
            drawn = None
            if settings.negatives < batch.labels.shape[1]:
                drawn = torch.rand(batch.labels.shape, generator=generator).to(device)
            with torch.enable_grad():
                terms = ranknet_terms(net, batch, counts, settings, margin, drawn)
                loss = terms[0] + settings.margin_weight * terms[1]
                net.zero_grad()
                torch.autograd.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
            sums += terms.detach()
        best.update()
        population, margins = (ctx.sum(sums) / steps).tolist()
        log = {"population": population, "margin": margins, "loss": population + settings.margin_weight * margins}
        if not torch.tensor(log["loss"]).isfinite():
            raise UserError("the loss of RankNet is not finite: lower its learning rate, `ranknet.lr`")
    net.requires_grad_(False).zero_grad()
    best.restore()
    if net.exponent is not None:
        log["exponent"] = float(ctx.sum(net.exponent * ctx.first))
    return log | {"documents": float(len(rows)), "best_look": float(best.index)}


def make_optimizers(net: RankNet, settings: RankNetTraining) -> list[Optimizer]:
    tables = [table.weight for table in net.tables]
    made: list[Optimizer] = []
    if tables:
        kind = torch.optim.SparseAdam if net.sparse else torch.optim.Adam
        made.append(kind(tables, settings.lr))
    if net.exponent is not None:
        made.append(torch.optim.Adam([net.exponent], settings.exponent_lr))
    return made


def endless_batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of rows, reshuffled after each pass."""
    while True:
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], size)


def split_rows(rows: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random share of the rows, and the others, at least one."""
    size = min(round(share * len(rows)), len(rows) - 1)
    order = rows[torch.randperm(len(rows), generator=generator)] if size else rows
    return order[:size], order[size:]


class BestWeights:
    """Model selection: keeps the weights, the initial ones included, with the highest PSP@1 on held-back documents.

    P@1 may drop by `allowed_loss` from that of the base scores. If no weights comply, F = f.
    """

    def __init__(
        self, net: RankNet, candidates: Candidates, held: Tensor, weights: Tensor | None, allowed_loss: float
    ) -> None:
        self.net, self.candidates, self.held, self.weights = net, candidates, held, weights
        self.gain, self.index, self.updates = -1.0, -1, -1
        self.state: dict[str, Tensor] = {}
        if self.selects:
            self.min_hits = self._sums(base=True)[1] - allowed_loss * len(held)
        self.update()

    @property
    def selects(self) -> bool:
        return self.weights is not None and len(self.held) > 0

    @torch.no_grad()
    def update(self) -> None:
        """Evaluate the current weights and keep them if they are the best so far."""
        self.updates += 1
        if not self.selects:
            self.index = self.updates
            return
        gain, right = self._sums()
        if gain > self.gain and right >= self.min_hits:
            self.gain, self.index = gain, self.updates
            self.state = {name: value.clone() for name, value in self.net.state_dict().items()}

    @torch.no_grad()
    def _sums(self, base: bool = False) -> tuple[float, float]:
        """Sum of the inverse propensities of true labels at the first rank, and their number."""
        assert self.weights is not None
        gain, right = 0.0, 0.0
        for rows in torch.split(self.held, 1024):
            batch = self.candidates.take(rows, self.weights.device)
            scores = batch.scores if base else self.net(batch.labels, batch.scores)
            top = scores.masked_fill(batch.labels < 0, -torch.inf).argmax(1, keepdim=True)
            hits = batch.hits.gather(1, top)
            weights = self.weights[batch.labels.gather(1, top).clamp_min(0).long()]
            gain, right = gain + float((weights * hits).sum()), right + float(hits.sum())
        return gain, right

    def restore(self) -> None:
        if self.state:
            self.net.load_state_dict(self.state)
        elif self.selects:
            self.net.neutralize()
