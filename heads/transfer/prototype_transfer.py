"""HTTN: classifiers of rare labels from a few documents and a map learned on frequent labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import DenseHead, Ranking, TransitionContext, ranked
from heads.loss_base import MakeLoss
from heads.losses import BCE
from heads.tail.platt import mean_of_sigmoids
from heads.transfer.transfer_map import (
    attend,
    cell_means,
    choose_ridge,
    draw_documents,
    having,
    head_mask,
    joined,
    label_pairs,
    solve_adam,
    solve_ridge,
    unit_length,
)
from zoo.core.errors import MANY, UserError, check_low, check_range, check_width

UNTRAINED = -30.0  # logit of tail labels before the transfer


class PrototypeTransfer(DenseHead):
    """HTTN, EHTTN and imprinting: a map from prototypes to classifiers, learned on head labels, for tail labels.

    Xiao et al. 2021, "Does Head Label Help for Long-Tailed Multi-Label Text Classification"
    (https://arxiv.org/abs/2101.09704). The head labels are trained as usual (Eq. 4-5). `transfer` then fits a linear
    map from prototypes, which are means of a few documents, to the trained classifiers (Eq. 6-7), and applies it to the
    prototypes of tail labels (Eq. 8-12).

    As in the official code, document vectors and prototypes have unit length and logits a learned scale. Changes: the
    map is solved exactly by ridge regression by default (`solver`); the attention (Eq. 10) uses head prototypes of all
    documents, and its denominator is that of a softmax over head labels; tail labels may have fewer than t documents.

    Args:
        hidden: width of the document vector (d).
        tail_labels: number of rarest labels that are tail (l_tail); takes precedence over `tail_count`. With 0, all
            labels are trained together: Joint with HTTN's classifier, a control that differs in nothing else.
        tail_count: largest number of training documents of a tail label.
        shots: documents per sampled prototype (t).
        draws: sampled prototypes per head label (S).
        solver: how the map is fitted; `adam` is that of the official code, `identity` uses prototypes as classifiers
            (imprinting).
        ridge: strength of `ridge`, in units of draws * head labels / width. Default: cross-validated.
        adam_lr: learning rate of `adam`.
        adam_epochs: epochs of `adam`, with one step per draw.
        attention: mix head prototypes into those of tail labels (Eq. 10); without it and fine-tuning it is H-F-A of
            Figure 3, without fine-tuning alone H-F.
        temperature: temperature of the attention's softmax.
        attention_weight: weight of the attended prototype; 0.5 is the paper's average.
        members: number of tail classifiers from independent draws, whose probabilities are averaged (G of EHTTN). In
            the paper each is a complete HTTN; the official code has neither `attention` nor fine-tuning there.
        objective: fine-tune `members` by the loss of their mean probability (`collaborative`) or by the mean of their
            losses, as if each were trained alone (`individual`).
        rank_members: measure the ranking of each member too, as `member01/P@1` and so on (Figure 6).
        normalize: scale document vectors and sampled prototypes to unit length.
        normalize_head: scale classifiers of head labels to unit length too, as imprinting does (Qi et al. 2018,
            https://arxiv.org/abs/1712.07136): imprinted classifiers are unit prototypes.
        scale: initial value of the learned scale of the logits.
        bias: append a constant coordinate 1, which the map transfers like the others.
        mix: number of other documents in `tail_documents` per document with a tail label.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    is_head: Tensor  # (num_labels,) bool
    map: Tensor  # (d', d'), where d' is hidden, or hidden + 1 with bias
    prototypes: Tensor  # (num_labels, d') mean vector of each label's documents
    support: Tensor  # (num_labels,) documents of each prototype
    ready: Tensor  # () bool, `transfer` has run
    head_labels: Tensor
    tail_labels: Tensor
    column: Tensor  # (num_labels,) position of each label in cat[head; tail]
    head_column: Tensor  # (num_labels + 1,) position among head labels; one past the last for all others

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        hidden: int = 128,
        tail_labels: int | None = None,
        tail_count: int = 3,
        shots: int = 5,
        draws: int = 30,
        solver: Literal["ridge", "adam", "identity"] = "ridge",
        ridge: float | None = None,
        adam_lr: float = 0.01,
        adam_epochs: int = 8,
        attention: bool = True,
        temperature: float = 1.0,
        attention_weight: float = 0.5,
        members: int = 1,
        objective: Literal["collaborative", "individual"] = "collaborative",
        rank_members: bool = False,
        normalize: bool = True,
        normalize_head: bool = False,
        scale: float = 10.0,
        bias: bool = False,
        mix: float = 1.0,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space, loss)
        self.make_loss: MakeLoss = loss or BCE
        check_width(hidden=hidden, shots=shots, draws=draws)
        check_low(1, tail_count=tail_count, adam_epochs=adam_epochs)
        check_range(1, MANY, members=members)
        check_low(0, tail_labels=tail_labels, mix=mix)
        check_range(0, 1, attention_weight=attention_weight)
        check_low(1e-9, ridge=ridge, adam_lr=adam_lr, temperature=temperature, scale=scale)
        self.hidden, self.shots, self.draws, self.members, self.mix = hidden, shots, draws, members, mix
        self.solver, self.ridge, self.adam_lr, self.adam_epochs = solver, ridge, adam_lr, adam_epochs
        self.attention, self.temperature, self.attention_weight = attention, temperature, attention_weight
        self.objective, self.rank_members = objective, rank_members
        self.normalize, self.bias, self.width, self.added = normalize, bias, hidden + bias, space.added
        self.normalize_head = normalize_head
        self.project = nn.Linear(dim, hidden)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.register_buffer("map", torch.eye(self.width))
        self.register_buffer("prototypes", torch.zeros(space.num_labels, self.width))
        self.register_buffer("support", torch.zeros(space.num_labels, dtype=torch.long))
        self.register_buffer("ready", torch.tensor(False))
        self.is_ready = False  # `ready` as a Python value: reading a buffer would make a GPU wait
        self._index(head_mask(space, tail_labels, tail_count))
        num_head, num_tail = len(self.head_labels), len(self.tail_labels)
        self.head = nn.Parameter((torch.rand(num_head, self.width) * 2 - 1) / self.width**0.5)
        # Without labels it gets no gradient, which DDP would wait for.
        self.tail = nn.Parameter(torch.zeros(members, num_tail, self.width), requires_grad=num_tail > 0)
        if bias:
            with torch.no_grad():
                self.head[:, -1] = self.criterion.start_logits(space)[self.head_labels] / scale

    def _index(self, is_head: Tensor) -> None:
        """Set the buffers that say which labels are head, and where each label's column is."""
        is_head = is_head.to(self.map.device)
        self.num_labels = len(is_head)
        head, tail = is_head.nonzero().flatten(), (~is_head).nonzero().flatten()
        column = torch.cat([head, tail]).argsort()
        self.in_order = bool((column.diff() == 1).all())
        past = F.pad(column.clamp_max(len(head)), (0, 1), value=len(head))
        buffers = {"is_head": is_head, "head_labels": head, "tail_labels": tail, "column": column, "head_column": past}
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.ready &= f"{prefix}tail" in state_dict  # absent if the checkpoint has another split
        self.is_ready = bool(self.ready)

    @property
    def pending(self) -> tuple[str, ...]:
        return ("transfer",) if len(self.tail_labels) and not self.is_ready else ()

    def unit(self, features: Features) -> Tensor:
        """Document vectors (batch, d'): W2 of Eq. 3, normalized, with the constant coordinate if there is a bias."""
        vectors: Tensor = self.project(features.pooled)
        if self.normalize:
            vectors = F.normalize(vectors, dim=-1)
        return F.pad(vectors, (0, 1), value=1.0) if self.bias else vectors

    def head_weights(self) -> Tensor:
        """Classifiers of the head labels, (l_head, d')."""
        return unit_length(self.head, self.hidden) if self.normalize_head else self.head

    def forward(self, features: Features) -> Tensor:
        unit = self.unit(features)
        head = self.scale * (unit @ self.head_weights().T)
        if self.is_ready:
            # Added labels separately: the rounding of a matrix product depends on its size.
            sizes = [len(self.tail_labels) - self.added] + [self.added] * (self.added > 0)
            parts = torch.split(self.tail, sizes, dim=1)
            tail = torch.cat([mean_of_sigmoids(self.scale * (unit @ part.transpose(1, 2))) for part in parts], dim=1)
        else:
            tail = head.new_full((head.shape[0], len(self.tail_labels)), UNTRAINED)
        return self._all_labels(head, tail)

    def _all_labels(self, head: Tensor, tail: Tensor) -> Tensor:
        """Logits of all labels in their order (Eq. 12)."""
        logits = torch.cat([head, tail.to(head.dtype)], dim=1)
        return logits if self.in_order else logits[:, self.column]

    def member_logits(self, features: Features) -> Tensor:
        """Logits of each member of EHTTN, (members, batch, num_labels)."""
        unit = self.unit(features)
        head = self.scale * (unit @ self.head_weights().T)
        return torch.stack([self._all_labels(head, self.scale * (unit @ tail.T)) for tail in self.tail])

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        found = super().rankings(features, k)
        if self.rank_members and self.is_ready:
            with torch.autocast(features.pooled.device.type, enabled=False):
                logits = self.member_logits(features.float())
            found |= {f"member{i:02d}": ranked(member, k) for i, member in enumerate(logits, 1)}
        return found

    def weight_norms(self) -> Tensor:
        """Norm of each label's weights, the mean over members."""
        both = (self.head_weights(), self.tail)
        head, tail = (classifier[..., : self.hidden].norm(dim=-1) for classifier in both)
        return self.scale.abs() * torch.cat([head, tail.mean(0)])[self.column]

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        if self.is_ready and self.objective == "individual":
            return {"loss": torch.stack([self.criterion(m, targets) for m in self.member_logits(features)]).mean()}
        if self.is_ready:
            return super().loss(features, targets, stage)
        # Eq. 5: the loss ignores tail labels, whose column is past the last one.
        columns = self.head_column[targets.indices.clamp_max(self.num_labels)]
        logits = (self.scale * (self.unit(features) @ self.head_weights().T)).float()
        documents = self.criterion.document_values(targets)
        loss = self.criterion.over_block(logits, targets.rows, columns, self.head_labels, None, documents)
        return {"loss": loss / len(logits)}

    def head_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a head label."""
        return having(targets, self.is_head.cpu()).nonzero().flatten()

    def tail_documents(self, targets: Targets, seed: int) -> Tensor:
        """Documents with a tail label, and `mix` others per such document; all documents if no label is tail."""
        if self.is_head.all():
            return torch.arange(len(targets))
        chosen = having(targets, ~self.is_head.cpu())
        rest = (~chosen).nonzero().flatten()
        order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))
        chosen[rest[order[: round(self.mix * int(chosen.sum()))]]] = True
        return chosen.nonzero().flatten()

    # --- the transfer

    @torch.no_grad()
    def transfer(self, ctx: TransitionContext) -> None:
        """Compute the tail classifiers; sums are all-reduced, so all processes get the same result."""
        targets, generator = ctx.train_targets().to("cpu"), torch.Generator().manual_seed(ctx.seed)
        head, tail, every = len(self.head), len(self.tail_labels), torch.arange(len(targets))
        of_head = draw_documents(targets, self.head_labels.cpu(), self.shots, self.draws, generator)
        of_tail = draw_documents(targets, self.tail_labels.cpu(), self.shots, self.members, generator)
        parts = [(*of_head, self.draws * head), (*of_tail, self.members * tail), (every, torch.zeros_like(every), 1)]
        vectors = ((self.unit(features), batch.rows) for features, batch in ctx.train_features())
        parts.append(label_pairs(targets, self.num_labels))
        drawn, few, middle, means = cell_means(parts, vectors, len(targets), self.map, ctx.sum)
        self.prototypes.copy_(means)
        self.support.copy_(parts[-1][1].bincount(minlength=self.num_labels))
        drawn = self._renormalized(drawn.view(self.draws, head, self.width))
        few = self._renormalized(few.view(self.members, tail, self.width))
        log = self._fit_map(drawn, generator)
        heads = self._renormalized(means[self.head_labels])
        mixed, entropy = zip(*(self._mixed(member, heads) for member in few), strict=True)
        self.tail.copy_(torch.stack(mixed) @ self.map.double().T)  # Eq. 9 and 11
        self.is_ready = bool(self.ready.fill_(True))
        if self.attention and tail:
            log["attention_entropy"] = sum(entropy) / len(entropy)
        for name, weight in (("head", self.head_weights()), ("tail", self.tail)):
            if weight.numel():
                log[f"{name}_norm"] = float(weight.norm(dim=-1).mean())
                log[f"{name}_logit"] = float(self.scale * (weight.double() @ middle[0]).mean())
        ctx.log({f"transfer/{name}": value for name, value in log.items()})

    def _fit_map(self, drawn: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Fit `map` to sampled prototypes (draws, l_head, d') and classifiers of the head labels (Eq. 7)."""
        classifiers, log = self.head_weights().double(), {}
        if self.solver == "ridge":
            log["ridge"] = self.ridge or choose_ridge(drawn, classifiers)
            self.map.copy_(solve_ridge(drawn, classifiers, log["ridge"]))
        elif self.solver == "adam":
            self.map.copy_(solve_adam(drawn, classifiers, self.adam_lr, self.adam_epochs, generator))
        else:
            self.map.copy_(torch.eye(self.width))
        missed = sum(float((classifiers - draw @ self.map.double().T).square().sum()) for draw in drawn)
        return log | {"map_error": missed / max(len(drawn) * float(classifiers.square().sum()), 1e-12)}

    def _renormalized(self, means: Tensor) -> Tensor:
        return unit_length(means, self.hidden) if self.normalize else means

    def _mixed(self, few: Tensor, heads: Tensor) -> tuple[Tensor, float]:
        """p_new of Eq. 10 for tail prototypes (z, d'), and the mean entropy of the attention."""
        # Labels without documents get the mean head prototype: a zero classifier would mean probability 1/2.
        empty, entropy = ~few.any(dim=-1, keepdim=True), 0.0
        if self.attention:
            few, alpha = attend(few, heads, self.temperature, self.attention_weight)
            entropy = float(torch.special.entr(alpha).sum(-1).mean())
        return torch.where(empty, heads.mean(0), few), entropy

    # --- labels that come later

    @torch.no_grad()
    def learn_labels(
        self,
        space: LabelSpace,
        examples: Iterable[tuple[Features, Targets]],
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not self.is_ready:
            raise UserError("labels can be added only after transfer: finish the training first")
        pairs = [(self.unit(features), targets.to("cpu")) for features, targets in examples]
        targets = joined([targets for _, targets in pairs])
        unit = torch.cat([self.map.new_zeros(0, self.width), *(vectors for vectors, _ in pairs)])
        new = torch.arange(self.num_labels, space.num_labels)
        known = label_pairs(targets, space.num_labels)
        counts = known[1].bincount(minlength=space.num_labels)
        if len(without := new[counts[new] == 0]):
            raise UserError(f"no document for the new label {space.names[int(without[0])]!r}: give at least one")
        shots = self.shots if self.members > 1 else len(targets)  # a single classifier uses all documents
        drawn = draw_documents(targets, new, shots, self.members, torch.Generator().manual_seed(0))
        parts = [known, (*drawn, self.members * len(new))]
        vectors = [(unit, torch.arange(len(unit), device=unit.device))]
        means, few = cell_means(parts, vectors, len(targets), self.map, lambda total: total)
        heads = self._renormalized(self.prototypes[self.head_labels].double())
        self._update(counts[: self.num_labels], means, heads)
        few = self._renormalized(few.view(self.members, len(new), self.width))
        added = torch.stack([self._mixed(member, heads)[0] for member in few]) @ self.map.double().T
        tail = torch.cat([self.tail, added.to(self.tail.dtype)], dim=1)
        self.tail = nn.Parameter(tail, requires_grad=self.tail.requires_grad)
        self.prototypes = torch.cat([self.prototypes, means[self.num_labels :].to(self.prototypes.dtype)])
        self.criterion = self.make_loss(space).to(self.tail.device)  # it may have a value per label
        self.support = torch.cat([self.support, counts[self.num_labels :].to(self.support.device)])
        self.added += len(new)
        self._index(F.pad(self.is_head, (0, len(new))))

    def _update(self, more: Tensor, means: Tensor, heads: Tensor) -> None:
        """Shift the classifiers of known labels with `more` documents by the mapped change of their prototypes."""
        more = more.to(self.support.device)
        self.support += more
        seen = more.nonzero().flatten()
        share = (more[seen].double() / self.support[seen])[:, None]
        is_head, column = self.is_head[seen], self.column[seen]

        def mapped(prototypes: Tensor) -> Tensor:
            plain = self._renormalized(prototypes)
            return torch.where(is_head[:, None], plain, self._mixed(plain, heads)[0]) @ self.map.double().T

        before = self.prototypes[seen].double()
        after = before.lerp(means[seen], share)  # running mean
        change = (mapped(after) - mapped(before)).to(self.head.dtype)
        self.prototypes[seen] = after.to(self.prototypes.dtype)
        self.head.copy_(self.head_weights())  # the change is relative to the length that scores see
        self.head[column[is_head]] += change[is_head]
        self.tail[:, column[~is_head] - len(self.head)] += change[~is_head]
