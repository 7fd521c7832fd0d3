"""RankNet: learns from scores to put rare labels of a document before frequent ones, and both before wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.errors import UserError
from heads.base import check_low

T = TypeVar("T")


class Process(Protocol):
    """What training needs of a `TransitionContext`."""

    seed: int
    first: bool

    def track(self, items: Iterable[T], what: str) -> Iterator[T]: ...
    def sum(self, value: Tensor) -> Tensor: ...
    def log(self, values: Mapping[str, float]) -> None: ...


class RankNet(nn.Module):
    """Blocks F = W2 ReLU(W1 f) + f one after the other, on the candidates of a document alone.

    W1 f is a sum of rows weighted by scores, and W2 is read where there are candidates: neither cost nor memory of a
    batch depends on the number of labels. W2 is 0 to begin with, so that F is f.

    Args:
        num_labels: rows of both tables.
        width: of the bottleneck (V).
        blocks: how many.
        sparse: gradients of the rows that were read, for tables that are too large to step through.
        logits: whether f are logits: rows are then weighted by their sigmoid, for of a hundred candidates all but a few
            have large negative ones, which would be all that W1 sees.
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
            # small: Adam's first steps then move scores by hundredths
            first.weight.copy_(torch.randn(first.weight.shape, generator=generator) * self.width**-0.5)
            second.weight.zero_()

    @torch.no_grad()
    def grow(self, num_labels: int) -> None:
        """New labels, at the end, neither move nor are moved."""
        for table in (*self.first, *self.second):
            rows = table.weight.new_zeros(num_labels - len(table.weight), self.width)
            table.weight = nn.Parameter(torch.cat([table.weight, rows]), requires_grad=table.weight.requires_grad)
            table.num_embeddings = num_labels

    def blocks(self) -> Iterator[tuple[nn.EmbeddingBag, nn.Embedding]]:
        yield from zip(self.first, self.second, strict=True)

    def forward(self, labels: Tensor, scores: Tensor) -> Tensor:
        """F of candidates, all (batch, K); fills, label -1, take no part."""
        known, labels = labels >= 0, labels.clamp_min(0).long()
        for first, second in self.blocks():
            weights = scores.sigmoid() if self.logits else scores
            hidden = first(labels, per_sample_weights=weights * known).relu()  # (batch, V)
            scores = scores + (second(labels) @ hidden.unsqueeze(-1)).squeeze(-1)
        return scores


def population_sums(scores: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """Sum over pairs i, j of a document's labels of [(n_i - n_j) / (n_i + n_j) (F_i - F_j)]_+, (batch,).

    All (batch, P); `mask` tells labels from fills. Each pair counts twice, and no margin is asked for.
    """
    n_i, n_j, f_i, f_j = counts[:, :, None], counts[:, None], scores[:, :, None], scores[:, None]
    weight = (n_i - n_j) / (n_i + n_j).clamp_min(1)  # of two labels without documents 0, not 0 / 0
    pairs = mask[:, :, None] & mask[:, None]
    return ((weight * (f_i - f_j)).relu() * pairs).sum((1, 2))


def margin_sums(scores: Tensor, mask: Tensor, others: Tensor, others_mask: Tensor, margin: float) -> Tensor:
    """Sum over a document's labels i and others k of [F_k - F_i + c]_+, (batch,), of (batch, P) and (batch, N)."""
    pairs = mask[:, :, None] & others_mask[:, None]
    return ((others[:, None] - scores[:, :, None] + margin).relu() * pairs).sum((1, 2))


@dataclass
class RankNetTraining:
    """How RankNet is trained.

    Args:
        steps: how many, whatever the number of documents.
        look_every: steps after which documents that are held back decide whether this is the best so far.
        batch_size: documents in a step.
        lr: learning rate of Adam.
        margin_weight: of the second term, which keeps right labels before wrong ones (lambda). It is a mean over many
            more pairs, most of which are in order: it takes more than 1.
        margin: by which it wants them to be (c); by default 0.1 of probabilities and 1 of logits.
        negatives: wrong candidates of a document, half of them those with the highest scores, half drawn. The mean
            over many is one over labels that are in order already, and says little of those that are not.
        held_back: share of the documents that it does not learn from: the look with their highest PSP@1 counts, the
            start, at which F is f, among them. 0 takes the end.
        allowed_loss: looks that cost them more of P@1 do not count.
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
            raise UserError(f"--model.head.ranknet.held_back={self.held_back} is not between 0 and 1")


class Candidates(NamedTuple):
    """Base scores that RankNet learns from: a row for each document."""

    labels: Tensor  # (documents, K), -1 fills
    scores: Tensor  # (documents, K), on the scale that F has
    hits: Tensor  # (documents, K) bool, which labels are right

    def take(self, rows: Tensor, device: torch.device) -> Candidates:
        return Candidates(*(part[rows].to(device) for part in self))


def ranknet_terms(
    net: RankNet, batch: Candidates, counts: Tensor, settings: RankNetTraining, margin: float, drawn: Tensor | None
) -> Tensor:
    """Both terms, (2,): means over the pairs of a document, then over documents.

    As sums, the second, which has many more pairs, would leave nothing of the first.
    """
    scores = net(batch.labels, batch.scores)
    hits, wrong = batch.hits, chosen_negatives(batch, settings.negatives, drawn)
    right = hits.sum(1)
    top = hits.float().topk(max(int(right.max()), 1), dim=1)  # places of right labels, fills after them
    mask, positives = top.values > 0, scores.gather(1, top.indices)
    frequency = counts[batch.labels.gather(1, top.indices).clamp_min(0).long()]
    population = population_sums(positives, frequency, mask) / (right * (right - 1)).clamp_min(1)
    margins = margin_sums(positives, mask, scores, wrong, margin) / (right * wrong.sum(1)).clamp_min(1)
    return torch.stack([population.sum(), margins.sum()]) / (right > 0).sum().clamp_min(1)


def chosen_negatives(batch: Candidates, size: int, drawn: Tensor | None) -> Tensor:
    """Wrong candidates, (batch, K) bool: half of `size` the best ranked, half those with the largest of `drawn`."""
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
    ctx: Process,
    worth: Tensor | None = None,
) -> dict[str, float]:
    """Train anew; returns the terms since the last look. The first process trains, the others learn if it can go on.

    `worth` of labels is what PSP counts them by; without it the end is taken.

    Documents of which no label is a candidate, or nothing else, teach nothing and are left out.
    """
    device = counts.device
    rows = (candidates.hits.any(1) & (~candidates.hits & (candidates.labels >= 0)).any(1)).nonzero().flatten()
    if not len(rows):
        raise UserError("RankNet has no document to learn from: none has a label of its own among the candidates")
    net.reset(generator)
    held = rows[:0]
    if worth is not None and ctx.first:
        held, rows = shared_out(rows, settings.held_back, generator)
    best = Best(net, candidates, held, worth, settings.allowed_loss)
    net.requires_grad_(True)
    tables, lr = list(net.parameters()), settings.lr
    optimizer: Optimizer = torch.optim.SparseAdam(tables, lr) if net.sparse else torch.optim.Adam(tables, lr)
    log: dict[str, float] = {}
    batches = shuffled(rows, settings.batch_size, generator)
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
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            sums += terms.detach()
        best.look()
        population, margins = (ctx.sum(sums) / steps).tolist()
        log = {"population": population, "margin": margins, "loss": population + settings.margin_weight * margins}
        if not torch.tensor(log["loss"]).isfinite():
            raise UserError("the loss of RankNet is not finite: lower its learning rate, --model.head.ranknet.lr")
    net.requires_grad_(False).zero_grad()
    best.take()
    return log | {"documents": float(len(rows)), "best_look": float(best.number)}


def shuffled(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of rows without an end, in another order each time all have been seen."""
    while True:
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], size)


def shared_out(rows: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A share of the documents, and all others; at least one of these."""
    size = min(round(share * len(rows)), len(rows) - 1)
    order = rows[torch.randperm(len(rows), generator=generator)] if size else rows
    return order[:size], order[size:]


class Best:
    """Keeps the tables with the highest PSP@1 of documents that are held back, the first ones among them."""

    def __init__(
        self, net: RankNet, candidates: Candidates, held: Tensor, worth: Tensor | None, allowed_loss: float
    ) -> None:
        self.net, self.candidates, self.held, self.worth = net, candidates, held, worth
        self.least = -torch.inf  # right labels in the first place that a look must have
        self.allowed = allowed_loss * len(held)
        self.gain, self.number, self.looks = -1.0, 0, -1
        self.state: dict[str, Tensor] = {}
        self.look()

    @torch.no_grad()
    def look(self) -> None:
        self.looks += 1
        if self.worth is None or not len(self.held):
            self.number = self.looks
            return
        gain, right = 0.0, 0.0
        for rows in torch.split(self.held, 1024):
            batch = self.candidates.take(rows, self.worth.device)
            scores = self.net(batch.labels, batch.scores).masked_fill(batch.labels < 0, -torch.inf)
            top = scores.argmax(1, keepdim=True)
            worth = self.worth[batch.labels.gather(1, top).clamp_min(0).long()]
            hits = batch.hits.gather(1, top)
            gain, right = gain + float((worth * hits).sum()), right + float(hits.sum())
        if gain > self.gain and right >= self.least:
            self.gain, self.number = gain, self.looks
            self.least = self.least if self.looks else right - self.allowed
            self.state = {name: table.clone() for name, table in self.net.state_dict().items()}

    def take(self) -> None:
        if self.state:
            self.net.load_state_dict(self.state)
