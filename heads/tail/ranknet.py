"""RankNet: a residual network on scores that ranks rare labels before frequent ones, and both before wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heads.base import TransitionContext, check_low
from zoo.core.errors import UserError


class RankNet(nn.Module):
    """Stacked residual blocks F = W2 ReLU(W1 f) + f on the candidates of a document.

    W1 f is a weighted sum of embedding rows, and only the rows of W2 for the candidates are read: the cost of a batch
    does not depend on the number of labels. W2 is initialised with 0, so that F = f at the start.

    Args:
        num_labels: rows of both tables.
        width: width of the bottleneck (V).
        blocks: number of blocks.
        sparse: sparse gradients of the tables.
        logits: f are logits. W1 then reads their sigmoids, since most candidates have large negative logits, which
            would dominate the sum.
    """

    def __init__(self, num_labels: int, width: int, blocks: int, sparse: bool, logits: bool = False) -> None:
        super().__init__()
        self.width, self.sparse, self.logits = width, sparse, logits
        bags = [nn.EmbeddingBag(num_labels, width, mode="sum", sparse=sparse) for _ in range(blocks)]
        self.first = nn.ModuleList(bags)
        self.second = nn.ModuleList(nn.Embedding(num_labels, width, sparse=sparse) for _ in range(blocks))
        self.reset()

    @torch.no_grad()
    def reset(self, generator: torch.Generator | None = None) -> None:
        for first, second in self.blocks():
            # Small, so that Adam's first steps change scores by hundredths.
            first.weight.copy_(torch.randn(first.weight.shape, generator=generator) * self.width**-0.5)
            second.weight.zero_()

    @torch.no_grad()
    def grow(self, num_labels: int) -> None:
        """Append zero rows for new labels: their scores do not change, nor do they change others."""
        for table in (*self.first, *self.second):
            rows = table.weight.new_zeros(num_labels - len(table.weight), self.width)
            table.weight = nn.Parameter(torch.cat([table.weight, rows]), requires_grad=table.weight.requires_grad)
            table.num_embeddings = num_labels

    def blocks(self) -> Iterator[tuple[nn.EmbeddingBag, nn.Embedding]]:
        yield from zip(self.first, self.second, strict=True)

    def forward(self, labels: Tensor, scores: Tensor) -> Tensor:
        """F of candidates, all (batch, K); padding, label -1, is ignored."""
        known, labels = labels >= 0, labels.clamp_min(0).long()
        for first, second in self.blocks():
            weights = scores.sigmoid() if self.logits else scores
            hidden = first(labels, per_sample_weights=weights * known).relu()  # (batch, V)
            scores = scores + (second(labels) @ hidden.unsqueeze(-1)).squeeze(-1)
        return scores


def population_sums(scores: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """Sum over pairs i, j of a document's labels of [(n_i - n_j) / (n_i + n_j) (F_i - F_j)]_+, (batch,).

    All inputs are (batch, P); `mask` is False on padding. Each pair counts twice, and there is no margin.
    """
    n_i, n_j, f_i, f_j = counts[:, :, None], counts[:, None], scores[:, :, None], scores[:, None]
    weight = (n_i - n_j) / (n_i + n_j).clamp_min(1)  # 0 for two labels without documents
    pairs = mask[:, :, None] & mask[:, None]
    return ((weight * (f_i - f_j)).relu() * pairs).sum((1, 2))


def margin_sums(scores: Tensor, mask: Tensor, others: Tensor, others_mask: Tensor, margin: float) -> Tensor:
    """Sum over a document's labels i (batch, P) and other labels k (batch, N) of [F_k - F_i + c]_+, (batch,)."""
    pairs = mask[:, :, None] & others_mask[:, None]
    return ((others[:, None] - scores[:, :, None] + margin).relu() * pairs).sum((1, 2))


@dataclass
class RankNetTraining:
    """Training of RankNet.

    Args:
        steps: number of steps.
        look_every: steps between evaluations on the held-back documents.
        batch_size: documents per step.
        lr: learning rate of Adam.
        margin_weight: weight of the margin term (lambda). Most of its pairs are in order already and add 0 to the mean,
            so it should be above 1.
        margin: margin between true and wrong labels (c). Default: 0.1 on probabilities, 1 on logits.
        negatives: wrong candidates per document: half are those with the highest scores, half are sampled.
        held_back: share of the documents used for model selection: the tables with the highest PSP@1 are kept, which
            may be the initial ones. 0 keeps the last ones.
        allowed_loss: largest drop of P@1 on the held-back documents.
    """

    steps: int = 300
    look_every: int = 25
    batch_size: int = 256
    lr: float = 1e-4
    margin_weight: float = 10.0
    margin: float | None = None
    negatives: int = 8
    held_back: float = 0.2
    allowed_loss: float = 0.005

    def __post_init__(self) -> None:
        whole, least = ("steps", "look_every", "batch_size", "negatives"), ("margin_weight", "margin", "allowed_loss")
        check_low(1, **{f"ranknet.{name}": getattr(self, name) for name in whole})
        check_low(0, **{f"ranknet.{name}": getattr(self, name) for name in least})
        check_low(1e-9, **{"ranknet.lr": self.lr})
        if not 0 <= self.held_back < 1:
            raise UserError(f"`ranknet.held_back={self.held_back}` is not between 0 and 1")


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
    """Both loss terms, (2,): mean over the pairs of a document, then over documents.

    The paper sums; the margin term, which has many more pairs, would then dominate.
    """
    scores = net(batch.labels, batch.scores)
    hits, wrong = batch.hits, chosen_negatives(batch, settings.negatives, drawn)
    right = hits.sum(1)
    top = hits.float().topk(max(int(right.max()), 1), dim=1)  # columns of true labels, then padding
    mask, positives = top.values > 0, scores.gather(1, top.indices)
    frequency = counts[batch.labels.gather(1, top.indices).clamp_min(0).long()]
    population = population_sums(positives, frequency, mask) / (right * (right - 1)).clamp_min(1)
    margins = margin_sums(positives, mask, scores, wrong, margin) / (right * wrong.sum(1)).clamp_min(1)
    return torch.stack([population.sum(), margins.sum()]) / (right > 0).sum().clamp_min(1)


def chosen_negatives(batch: Candidates, size: int, drawn: Tensor | None) -> Tensor:
    """Wrong candidates, (batch, K) bool: half of `size` are the best ranked, half have the largest `drawn` numbers."""
    wrong = ~batch.hits & (batch.labels >= 0)
    if drawn is None:
        return wrong
    hardest = wrong & (wrong.cumsum(1) <= size - size // 2)
    keys = torch.where(wrong & ~hardest, drawn, -1.0)
    places = keys.topk(min(size // 2, keys.shape[1]), dim=1)
    return hardest.scatter(1, places.indices, hardest.gather(1, places.indices) | (places.values >= 0))


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

    `weights` are the inverse propensities of PSP@1; without them the last tables are kept. Documents without both
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
    best = BestTables(net, candidates, held, weights, settings.allowed_loss)
    net.requires_grad_(True)
    tables, lr = list(net.parameters()), settings.lr
    optimizer: Optimizer = torch.optim.SparseAdam(tables, lr) if net.sparse else torch.optim.Adam(tables, lr)
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
                optimizer.zero_grad()
                torch.autograd.backward(loss)
            optimizer.step()
            sums += terms.detach()
        best.update()
        population, margins = (ctx.sum(sums) / steps).tolist()
        log = {"population": population, "margin": margins, "loss": population + settings.margin_weight * margins}
        if not torch.tensor(log["loss"]).isfinite():
            raise UserError("the loss of RankNet is not finite: lower its learning rate, `ranknet.lr`")
    net.requires_grad_(False).zero_grad()
    best.restore()
    return log | {"documents": float(len(rows)), "best_look": float(best.index)}


def endless_batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of rows, reshuffled after each pass."""
    while True:
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], size)


def split_rows(rows: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random share of the rows, and the others, at least one."""
    size = min(round(share * len(rows)), len(rows) - 1)
    order = rows[torch.randperm(len(rows), generator=generator)] if size else rows
    return order[:size], order[size:]


class BestTables:
    """Model selection: keeps the tables, the initial ones included, with the highest PSP@1 on held-back documents."""

    def __init__(
        self, net: RankNet, candidates: Candidates, held: Tensor, weights: Tensor | None, allowed_loss: float
    ) -> None:
        self.net, self.candidates, self.held, self.weights = net, candidates, held, weights
        self.min_hits = -torch.inf  # P@1 of the initial tables minus the allowed loss, times the documents
        self.allowed = allowed_loss * len(held)
        self.gain, self.index, self.updates = -1.0, 0, -1
        self.state: dict[str, Tensor] = {}
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Evaluate the current tables and keep them if they are the best so far."""
        self.updates += 1
        if self.weights is None or not len(self.held):
            self.index = self.updates
            return
        gain, right = 0.0, 0.0
        for rows in torch.split(self.held, 1024):
            batch = self.candidates.take(rows, self.weights.device)
            scores = self.net(batch.labels, batch.scores).masked_fill(batch.labels < 0, -torch.inf)
            top = scores.argmax(1, keepdim=True)
            weights = self.weights[batch.labels.gather(1, top).clamp_min(0).long()]
            hits = batch.hits.gather(1, top)
            gain, right = gain + float((weights * hits).sum()), right + float(hits.sum())
        if gain > self.gain and right >= self.min_hits:
            self.gain, self.index = gain, self.updates
            self.min_hits = self.min_hits if self.updates else right - self.allowed
            self.state = {name: table.clone() for name, table in self.net.state_dict().items()}

    def restore(self) -> None:
        if self.state:
            self.net.load_state_dict(self.state)
