"""ME-XML: several experts on different layers of one backbone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.attention.blockwise import Tensors
from heads.attention.label_attention import LabelwiseHead, attend, attend_pairs, attention, labelwise_loss
from heads.base import Ranking, TransitionContext, ranked
from heads.tail.platt import mean_of_sigmoids
from zoo.core.errors import MANY, UserError, check_low, check_range, check_width


@dataclass(frozen=True)
class ExpertSettings:
    """Kind and layer of an expert.

    Args:
        kind: `label_attention` over the tokens (A-m in the paper), or a classifier on the document's vector, `cls`
            (D-m).
        layer: layer m of the backbone, from 1; -1 is the last.
        further_layers: layers whose document vectors a `cls` expert concatenates with that of `layer`: D-(12+1) has 1.
    """

    kind: Literal["label_attention", "cls"]
    layer: int = -1
    further_layers: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        return (self.layer, *self.further_layers)

    def __post_init__(self) -> None:
        check_range(-MANY, MANY, layer=self.layer)
        for layer in self.further_layers:
            check_range(-MANY, MANY, further_layers=layer)
        if 0 in self.layers:
            name = "further_layers" if self.layer else "layer"
            raise UserError(f"`experts`: `{name}=0` does not exist; the first is 1, the last -1")

    @property
    def name(self) -> str:
        """Name as in the paper, such as A1, D12 or D12+1; D-1 for the last layer."""
        return f"{'A' if self.kind == 'label_attention' else 'D'}{'+'.join(map(str, self.layers))}"


class Expert(nn.Module, ABC):
    """Base class of experts: logits of blocks of documents and labels, as in `LabelwiseHead`, or of single pairs."""

    streams: int  # number of tensors from `per_token`

    @abstractmethod
    def per_token(self, features: Features) -> Tensors: ...

    @abstractmethod
    def per_label(self) -> Tensors: ...

    @abstractmethod
    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor: ...

    @abstractmethod
    def score_pairs(self, tokens: Tensors, mask: Tensor, targets: Targets) -> Tensor:
        """Logits (pairs,) of the positive pairs."""


class AttentionExpert(Expert):
    """A-m: label attention over the tokens of layer m, scored by one network for all labels (Eq. 2-4)."""

    streams = 2

    def __init__(self, dim: int, start: Tensor, layer: int, hidden: int, label_bias: bool) -> None:
        super().__init__()
        self.layer = layer
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(len(start), dim)))
        self.first, self.last = nn.Linear(dim, hidden), nn.Linear(hidden, 1, bias=False)
        self.bias = nn.Parameter(start.clone() if label_bias else torch.zeros(1))

    def per_token(self, features: Features) -> Tensors:
        tokens = features.states(self.layer)
        # Attention is linear in the tokens: applying the first layer to them is cheaper.
        return tokens, tokens @ self.first.weight.T

    def per_label(self) -> Tensors:
        return self.query, self.bias if len(self.bias) > 1 else self.bias.expand(len(self.query))

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        return self.network(attend(labels[0], tokens[0], tokens[1], mask), labels[1])

    def score_pairs(self, tokens: Tensors, mask: Tensor, targets: Targets) -> Tensor:
        query, bias = (tensor[targets.indices] for tensor in self.per_label())
        return self.network(attend_pairs(query, tokens[0], tokens[1], mask, targets), bias)

    def network(self, attended: Tensor, bias: Tensor) -> Tensor:
        logits: Tensor = self.last((attended + self.first.bias).relu())
        return logits.squeeze(-1) + bias


class ClsExpert(Expert):
    """D-m: a two-layer network on the document's vector at layer m (Eq. 1), or at several layers, concatenated."""

    streams = 1

    def __init__(self, dim: int, start: Tensor, layers: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.layers = layers
        inner = nn.Linear(dim * len(layers), dim)
        self.first = nn.Sequential(nn.Dropout(dropout), inner, nn.GELU(), nn.Dropout(dropout))
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(len(start), dim), a=5**0.5))
        self.bias = nn.Parameter(start.clone())

    def per_token(self, features: Features) -> Tensors:
        vectors = torch.cat([features.vector(layer) for layer in self.layers], dim=-1)
        return (self.first(vectors).unsqueeze(1),)  # the document is its only token

    def per_label(self) -> Tensors:
        return self.weight, self.bias

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        weight, bias = labels
        return tokens[0].squeeze(1) @ weight.T + bias

    def score_pairs(self, tokens: Tensors, mask: Tensor, targets: Targets) -> Tensor:
        own = tokens[0].squeeze(1)[targets.rows] * self.weight[targets.indices]
        return own.sum(-1) + self.bias[targets.indices]


class Experts(LabelwiseHead):
    """ME-XML: experts on several layers of one backbone, ranked by their mean probability.

    "Extreme Multi-label Text Classification with Multi-layer Experts" (https://openreview.net/forum?id=IGAZ8wmBozW).
    Each expert has a loss of its own. After `start_diversity`, experts are rewarded for a large KL divergence on the
    true labels of a document, weighted by (1 - the larger probability) / n (Eq. 8-10): more for rare labels, and for
    those that neither expert is sure of.

    Changes to the paper: both losses are sums over labels and means over documents, since a mean of the BCE over labels
    would let the diversity loss push experts away from one-shot labels; with three or more experts, all ordered pairs
    are averaged; the attention experts have a bias per label.

    Args:
        experts: kinds and layers. The paper has A1 and D12, or A1, A6 and D12. Default: label attention on the first
            layer, and a classifier on the last.
        objective: `individual`, the mean of the experts' losses, or `collaborative`, the loss of their mean logits.
        diversity: weight of the diversity loss (alpha); 0 turns it off.
        direction: compare an expert with later ones (`forward`), earlier ones (`backward`), or both.
        max_kl: divergence above which the reward is constant. Default: no limit.
        hidden: hidden width of attention experts.
        label_bias: add a bias per label to attention experts, whose shared network has no prior of a label.
        dropout: dropout rate of `cls` experts.
        common: arguments of `LabelwiseHead`; its loss is the term `bce`.
    """

    counts: Tensor  # (num_labels,) training documents
    diverse: Tensor  # () 1 after `start_diversity`, else 0

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        experts: Sequence[ExpertSettings] = (ExpertSettings("label_attention", 1), ExpertSettings("cls")),
        objective: Literal["individual", "collaborative"] = "individual",
        diversity: float = 0.01,
        direction: Literal["forward", "backward", "both"] = "both",
        max_kl: float | None = None,
        hidden: int = 256,
        label_bias: bool = True,
        dropout: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(dim, space, **common)
        check_low(0, diversity=diversity, max_kl=max_kl)
        check_range(0, 1, dropout=dropout)
        check_width(hidden=hidden)
        self.parts = tuple(expert.name for expert in experts)
        check_experts(experts)
        self.objective, self.diversity, self.max_kl = objective, diversity, max_kl
        self.needs_tokens = any(expert.kind == "label_attention" for expert in experts)
        self.needs_layers = max(abs(layer) for expert in experts for layer in expert.layers)
        self.experts = nn.ModuleDict()
        start = self.criterion.start_logits(space)
        for expert in experts:
            if expert.kind == "label_attention":
                self.experts[expert.name] = AttentionExpert(dim, start, expert.layer, hidden, label_bias)
            else:
                self.experts[expert.name] = ClsExpert(dim, start, expert.layers, dropout)
        forward = list(combinations(range(len(experts)), 2))
        backward = [(k, j) for j, k in forward]
        self.pairs = {"forward": forward, "backward": backward, "both": [*forward, *backward]}[direction]
        self.register_buffer("counts", torch.tensor(space.counts, dtype=torch.float), persistent=False)
        self.register_buffer("diverse", torch.zeros(()))

    def start_experts(self, ctx: TransitionContext) -> None:
        """Turn the diversity loss off, which may be on in the checkpoint of an earlier run."""
        self.diverse.fill_(0)

    def start_diversity(self, ctx: TransitionContext) -> None:
        """Turn the diversity loss on."""
        self.diverse.fill_(1)

    @property
    def pending(self) -> tuple[str, ...]:
        return ("start_diversity",) if self.diversity and self.pairs and not self.diverse else ()

    # Tensors of all experts are concatenated.

    def per_token(self, features: Features) -> Tensors:
        return joined([expert.per_token(features) for expert in self.each()])

    def per_label(self) -> Tensors:
        return joined([expert.per_label() for expert in self.each()])

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        return mean_of_sigmoids(self.opinions(tokens, mask, labels))

    def opinions(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        """Logits of each expert (experts, docs, labels)."""
        logits = []
        for expert in self.each():
            logits.append(expert.score(tokens[: expert.streams], mask, labels[:2]))
            tokens, labels = tokens[expert.streams :], labels[2:]
        return torch.stack(logits)

    def each(self) -> list[Expert]:
        return [expert for expert in self.experts.values() if isinstance(expert, Expert)]

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        """Mean over the attention experts."""
        weights = [
            attention(expert.query[labels], features.states(expert.layer), features.mask)
            for expert in self.each()
            if isinstance(expert, AttentionExpert)
        ]
        return torch.stack(weights).mean(0) if weights else None

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        with torch.autocast(features.pooled.device.type, enabled=False):
            logits = self.all_labels(features.float(), self.opinions)
        own = {name: ranked(expert, k) for name, expert in zip(self.parts, logits, strict=True)}
        return {"": ranked(mean_of_sigmoids(logits), k)} | own

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        tokens = [expert.per_token(features) for expert in self.each()]
        known = targets.below(self.num_labels)
        terms = self.bce_terms(tokens, features.mask, known)
        pairs = [
            expert.score_pairs(mine, features.mask, known) for expert, mine in zip(self.each(), tokens, strict=True)
        ]
        logits = torch.stack(pairs).float()
        divergences = self.divergences(logits if self.diversity else logits.detach(), known)
        for (j, k), kl in zip(self.pairs, divergences["kl"], strict=True):
            terms[f"kl/{self.parts[j]}/{self.parts[k]}"] = kl
        terms["loss"] = terms["bce"] - self.diversity * self.diverse * divergences["reward"]
        return terms

    def bce_terms(self, tokens: list[Tensors], mask: Tensor, known: Targets) -> dict[str, Tensor]:
        """The loss over all labels, `bce`, and with the individual objective that of each expert."""
        if self.objective == "collaborative":
            tensors = joined(tokens)
            total = labelwise_loss(self, self.mean_logit, self.criterion, tensors, mask, known, self.negatives)
            return {"bce": total}
        terms = {
            name: labelwise_loss(expert, expert.score, self.criterion, mine, mask, known, self.negatives)
            for name, expert, mine in zip(self.parts, self.each(), tokens, strict=True)
        }
        return terms | {"bce": torch.stack(list(terms.values())).mean()}

    def mean_logit(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        return self.opinions(tokens, mask, labels).mean(0)

    def divergences(self, logits: Tensor, known: Targets) -> dict[str, Tensor]:
        """Mean KL divergence of each pair of experts on the true labels (`kl`), and the diversity reward (`reward`)."""
        if not self.pairs:
            return {"kl": logits.new_zeros(0), "reward": logits.new_zeros(())}
        first, second = (torch.stack([logits[pair[side]] for pair in self.pairs]) for side in (0, 1))  # (pairs, n)
        kl = bernoulli_kl(first, second)
        reward = kl if self.max_kl is None else kl.clamp_max(self.max_kl)
        unsure = 1 - torch.maximum(first, second).detach().sigmoid()
        reward = (unsure / self.counts[known.indices] * reward).sum(1).mean() / len(known)
        return {"kl": kl.detach().sum(1) / max(kl.shape[1], 1), "reward": reward}


def check_experts(experts: Sequence[ExpertSettings]) -> None:
    names = [expert.name for expert in experts]
    if not experts or len(set(names)) < len(names):
        raise UserError(f"`experts` must be distinct, and at least one: got {names}")
    if any(expert.further_layers and expert.kind != "cls" for expert in experts):
        raise UserError("`experts`: `further_layers` needs `kind=cls`; label attention reads one layer")


def joined(parts: Sequence[Tensors]) -> Tensors:
    return tuple(tensor for part in parts for tensor in part)


def bernoulli_kl(a: Tensor, b: Tensor) -> Tensor:
    """KL(sigmoid(a) || sigmoid(b)) from logits; finite."""
    return a.sigmoid() * (a - b) + F.softplus(b) - F.softplus(a)
