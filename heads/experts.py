"""ME-XML: several experts, each on a layer of its own, that are trained to err differently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Ranking, TransitionContext, check_low, ranked
from heads.blockwise import Tensors
from heads.label_attention import LabelwiseHead, attend, attend_pairs, attention, labelwise_bce


@dataclass(frozen=True)
class ExpertSettings:
    """What an expert looks at.

    Args:
        kind: `label_attention` reads the tokens anew for each label, `cls` the document's vector.
        layer: of the backbone, the first being 1 and the last -1.
    """

    kind: Literal["label_attention", "cls"]
    layer: int = -1

    @property
    def name(self) -> str:
        """As in the paper, A for attention and D for document: A1, D12, and D-1 for the last layer."""
        return f"{'A' if self.kind == 'label_attention' else 'D'}{self.layer}"


class Expert(nn.Module, ABC):
    """Logits from one layer: of blocks of documents and labels, as in a `LabelwiseHead`, or of single pairs."""

    streams: int  # how many tensors `per_token` gives

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    @abstractmethod
    def per_token(self, features: Features) -> Tensors: ...

    @abstractmethod
    def per_label(self) -> Tensors: ...

    @abstractmethod
    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor: ...

    @abstractmethod
    def score_pairs(self, tokens: Tensors, mask: Tensor, targets: Targets) -> Tensor:
        """Logits (pairs,) of the documents' own labels."""


class AttentionExpert(Expert):
    """A-m: label queries attend to the tokens of layer m, and one network scores what they find."""

    streams = 2

    def __init__(self, dim: int, space: LabelSpace, layer: int, hidden: int, label_bias: bool) -> None:
        super().__init__(layer)
        self.query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(space.num_labels, dim)))
        self.first, self.last = nn.Linear(dim, hidden), nn.Linear(hidden, 1, bias=False)
        self.bias = nn.Parameter(space.prior().logit() if label_bias else torch.zeros(1))

    def per_token(self, features: Features) -> Tensors:
        tokens = features.states(self.layer)
        # Attention is linear in the tokens: the first layer goes before it, where there is less to compute.
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
    """D-m: a small network on the document's vector at layer m."""

    streams = 1

    def __init__(self, dim: int, space: LabelSpace, layer: int, dropout: float) -> None:
        super().__init__(layer)
        self.first = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, dim), nn.GELU(), nn.Dropout(dropout))
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(space.num_labels, dim), a=5**0.5))
        self.bias = nn.Parameter(space.prior().logit())

    def per_token(self, features: Features) -> Tensors:
        return (self.first(features.vector(self.layer)).unsqueeze(1),)  # the document as its only token

    def per_label(self) -> Tensors:
        return self.weight, self.bias

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        weight, bias = labels
        return tokens[0].squeeze(1) @ weight.T + bias

    def score_pairs(self, tokens: Tensors, mask: Tensor, targets: Targets) -> Tensor:
        own = tokens[0].squeeze(1)[targets.rows] * self.weight[targets.indices]
        return own.sum(-1) + self.bias[targets.indices]


class Experts(LabelwiseHead):
    """Experts on several layers of one backbone; the mean of their probabilities ranks.

    After ME-XML, "Multiple Experts for extreme multi-label text classification". Each expert answers for itself
    (`individual`), and after the transition `start_diversity` they are rewarded for disagreeing on true labels, the
    more so the rarer a label is and the less sure both are of it.

    Args:
        experts: the paper has A1 and D12, or A1, A6 and D12; by default attention to the first layer, and one on the
            document's vector at the last.
        objective: `individual`, the mean of the experts' losses, or `collaborative`, the loss of their mean logits.
        diversity: weight of the diversity loss (alpha); 0 leaves it out.
        direction: pairs that diversity compares: those of an expert with later ones (`forward`), with earlier ones
            (`backward`), or the mean of both.
        max_kl: divergence above which there is no reward for more; none by default.
        hidden: width of the network in experts with attention.
        label_bias: a bias for each label in experts with attention, whose network, shared by all, has no prior.
        dropout: in the network of the others.
        negatives: other labels than those of the batch to train on, drawn anew for each; all by default.
    """

    counts: Tensor  # (num_labels,) training documents
    diverse: Tensor  # () 1 once diversity counts, 0 before

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
        negatives: int | None = None,
    ) -> None:
        super().__init__(dim, space, negatives)
        check_low(0, diversity=diversity, max_kl=max_kl, dropout=dropout)
        check_low(1, hidden=hidden)
        self.parts = tuple(expert.name for expert in experts)
        check_experts(experts)
        self.objective, self.diversity, self.max_kl = objective, diversity, max_kl
        self.needs_tokens = any(expert.kind == "label_attention" for expert in experts)
        self.needs_layers = max(abs(expert.layer) for expert in experts)
        self.experts = nn.ModuleDict()
        for expert in experts:
            if expert.kind == "label_attention":
                self.experts[expert.name] = AttentionExpert(dim, space, expert.layer, hidden, label_bias)
            else:
                self.experts[expert.name] = ClsExpert(dim, space, expert.layer, dropout)
        forward = list(combinations(range(len(experts)), 2))
        backward = [(k, j) for j, k in forward]
        self.pairs = {"forward": forward, "backward": backward, "both": [*forward, *backward]}[direction]
        self.register_buffer("counts", torch.tensor(space.counts, dtype=torch.float), persistent=False)
        self.register_buffer("diverse", torch.zeros(()))

    def start_experts(self, ctx: TransitionContext) -> None:
        """Each learns for itself; for a first stage, also one that begins with a finished run's weights."""
        self.diverse.fill_(0)

    def start_diversity(self, ctx: TransitionContext) -> None:
        """From here on the diversity loss counts."""
        self.diverse.fill_(1)

    @property
    def pending(self) -> tuple[str, ...]:
        return ("start_diversity",) if self.diversity and self.pairs and not self.diverse else ()

    # Tensors of all experts, one after the other

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
        return list(self.experts.values())  # type: ignore[arg-type]

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        """Of several experts with attention the mean."""
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

    # Training

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
        """The loss over all labels, `bce`, and where experts are trained one by one that of each."""
        if self.objective == "collaborative":
            return {"bce": labelwise_bce(self, self.mean_logit, joined(tokens), mask, known, self.negatives)}
        terms = {
            name: labelwise_bce(expert, expert.score, mine, mask, known, self.negatives)
            for name, expert, mine in zip(self.parts, self.each(), tokens, strict=True)
        }
        return terms | {"bce": torch.stack(list(terms.values())).mean()}

    def mean_logit(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        return self.opinions(tokens, mask, labels).mean(0)

    def divergences(self, logits: Tensor, known: Targets) -> dict[str, Tensor]:
        """Of each pair of experts on the true labels (`kl`, their mean), and what diversity rewards (`reward`)."""
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
        raise UserError(f"--model.head.experts: give at least one, and no two alike; there are {names}")
    if any(expert.layer == 0 for expert in experts):
        raise UserError("--model.head.experts: layer 0 does not exist; the first is 1, the last -1")


def joined(parts: Sequence[Tensors]) -> Tensors:
    return tuple(tensor for part in parts for tensor in part)


def mean_of_sigmoids(logits: Tensor) -> Tensor:
    """The logit of the experts' mean probability, from logits (experts, ...): exact where the sigmoid rounds to 1."""
    return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)


def bernoulli_kl(a: Tensor, b: Tensor) -> Tensor:
    """KL(sigmoid(a) || sigmoid(b)), finite for all finite logits."""
    return a.sigmoid() * (a - b) + F.softplus(b) - F.softplus(a)
