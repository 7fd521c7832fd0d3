"""LSFA: label-specific features, and generated ones for rare labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.attention.blockwise import Tensors
from heads.attention.label_attention import LabelwiseHead, attend, attend_pairs
from heads.augment.contrastive import PscScale, contrastive_loss, psc_factor
from heads.augment.feature_bank import FeatureBank
from heads.augment.pvae import PVAE, Pairs, PVAETraining, train_pvae
from heads.base import TransitionContext
from zoo.core.errors import MANY, UserError, check_low, check_range, check_width

DRAWS = 256  # generated features per label in the diagnostics


class PvaeAugmentor(LabelwiseHead):
    """LSFA: label attention whose classifiers are adjusted with generated features of tail labels.

    Xu et al. 2023, "Label-Specific Feature Augmentation for Long-Tailed Multi-Label Text Classification"
    (https://doi.org/10.1609/aaai.v37i9.26259).

    1. Train label-specific features (Eq. 1-6) with a contrastive term that pulls them to their label's prototype
       (Eq. 9). `refresh_prototypes` recomputes the prototypes in each epoch.
    2. `collect_bank` stores the features of all positive pairs (Eq. 10), and `train_pvae` learns from those of head
       labels how features vary around a prototype (Eq. 11-17).
    3. After `start_adjustment` the loss includes generated features of tail labels (Eq. 18-19).

    Changes to the paper: the signs of Eq. 6, 9 and 19 are corrected, and the own prototype is in the denominator of
    Eq. 9. Changes to the official code: one classifier per label, and a PVAE on real-valued, standardised features.

    Args:
        feat_dim: width of the features ReLU(W v + b), as in the official code; None uses the attention output v itself,
            as in the paper.
        classifier: one vector per label, or one shared by all, as in the official code, which cannot be adjusted for a
            single label.
        bias: add a bias per label, initialized with its prior.
        label_specific: False uses the document's vector as the feature of all labels (ablation D of the paper).
        psc_weight: weight of the contrastive term (alpha); 0 turns it off (ablation B).
        psc_scale: `sum` over a document's pairs, as in Eq. 9, or the scale of the official code (`authors`), where the
            term weighs L / (batch size * pairs per document) times as much.
        temperature: temperature of its softmax (tau).
        psc_start: first epoch of stage 1 with the contrastive term; the official code has 25 of at most 100.
        psc_every: apply it in epochs that are multiples of this; the official code has 2.
        head_count: least number of training documents of head labels (N_t); None takes the most frequent tenth.
        samples: generated features per tail label and epoch (N_a); 0 turns augmentation off.
        augment_weight: weight of the generated features in the loss (gamma).
        restart: whether `start_adjustment` resets the classifiers or keeps those of stage 1.
        pvae: training of the PVAE.
        pvae_hidden: width of its hidden layers.
        latent: width of its latent variable.
        bank_memory: size in bytes above which the feature bank, one per process, is kept on disk.
        common: arguments of `LabelwiseHead`; its loss is the term `bce`.
    """

    prototypes: Tensor  # (num_labels, width)
    support: Tensor  # (num_labels,) documents of each prototype
    generates: Tensor  # () bool, `train_pvae` has run
    adjusting: Tensor  # () bool, `start_adjustment` has run
    tail_labels: Tensor  # tail labels with documents

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        feat_dim: int | None = 300,
        classifier: Literal["per_label", "shared"] = "per_label",
        bias: bool = False,
        label_specific: bool = True,
        psc_weight: float = 0.1,
        psc_scale: PscScale = "sum",
        temperature: float = 0.07,
        psc_start: int = 0,
        psc_every: int = 1,
        head_count: int | None = 50,
        samples: int = 10,
        augment_weight: float = 1.0,
        restart: Literal["reset", "warm"] = "reset",
        pvae: PVAETraining | None = None,
        pvae_hidden: int = 512,
        latent: int = 300,
        bank_memory: float = 2e9,
        **common: Any,
    ) -> None:
        super().__init__(dim, space, **common)
        check_width(feat_dim=feat_dim, pvae_hidden=pvae_hidden, latent=latent)
        check_low(1, head_count=head_count, psc_every=psc_every)
        check_low(0, psc_weight=psc_weight, psc_start=psc_start, augment_weight=augment_weight)
        check_range(0, MANY, samples=samples)
        check_range(0, 1e15, bank_memory=bank_memory)
        check_low(1e-6, temperature=temperature)
        self.num_documents, self.restart = space.num_documents, restart
        self.psc_weight, self.psc_scale, self.temperature = psc_weight, psc_scale, temperature
        self.psc_start, self.psc_every = psc_start, psc_every
        self.samples, self.augment_weight = samples, augment_weight
        self.pvae_training, self.bank_memory = pvae or PVAETraining(), bank_memory
        self.needs_tokens = label_specific
        self.query = nn.Parameter(xavier(space.num_labels, dim)) if label_specific else None
        self.project = nn.Linear(dim, feat_dim) if feat_dim else None
        self.width = feat_dim or dim
        self.classifier = Classifier(self.criterion.start_logits(space), self.width, classifier == "shared", bias)
        if head_count is None:
            trained = sorted(space.counts[: space.num_labels - space.added], reverse=True)
            head_count = trained[(len(trained) - 1) // 10]
        self.is_head = space.head_by_count(head_count)
        is_tail = ~self.is_head & (torch.tensor(space.counts) > 0)
        self.register_buffer("tail_labels", is_tail.nonzero().flatten(), persistent=False)
        self.register_buffer("prototypes", torch.zeros(space.num_labels, self.width))
        self.register_buffer("support", torch.zeros(space.num_labels, dtype=torch.long))
        self.register_buffer("generates", torch.tensor(False))
        self.register_buffer("adjusting", torch.tensor(False))
        self.pvae = PVAE(self.width, pvae_hidden, latent, rectify=feat_dim is not None).requires_grad_(False)
        self.bank: FeatureBank | None = None
        self._sync_flags()
        if self.augments and not self.is_head.any():
            raise UserError(
                f"no label has {head_count} training documents, so there are no head labels: set "
                f"`head_count` to {max(space.counts)} or less, or `samples=0` for no augmentation"
            )

    @property
    def augments(self) -> bool:
        return self.samples > 0 and len(self.tail_labels) > 0

    @property
    def pending(self) -> tuple[str, ...]:
        missing = {"train_pvae": not self.has_pvae, "start_adjustment": not self.is_adjusting}
        return tuple(name for name, is_missing in missing.items() if is_missing and self.augments)

    def _sync_flags(self) -> None:
        """Copy buffers to Python values: reading a buffer would make a GPU wait."""
        self.has_prototypes = bool(self.prototypes.any())
        self.has_pvae, self.is_adjusting = bool(self.generates), bool(self.adjusting)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        # A PVAE of another size is not loaded, and this one is untrained.
        self.generates &= all(f"{prefix}pvae.{name}" in state_dict for name in self.pvae.state_dict())
        self._sync_flags()

    # --- features and scores

    def per_token(self, features: Features) -> Tensors:
        tokens = features.tokens if self.query is not None else features.pooled.unsqueeze(1)
        # Attention is linear in the tokens: applying the projection to them is cheaper.
        return (tokens,) if self.project is None else (tokens, tokens @ self.project.weight.T)

    def queries(self) -> nn.Parameter | None:
        return self.query

    def per_label(self) -> Tensors:
        weight, bias = self.classifier.rows()
        return (weight, bias) if self.query is None else (weight, bias, self.query)

    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        if self.query is None:
            return torch.matmul(self.activate(tokens[-1][:, 0]), labels[0].T) + labels[1]
        v = self.activate(attend(labels[2], tokens[0], tokens[-1], mask))
        return (v * labels[0]).sum(-1) + labels[1]  # Eq. 5

    def activate(self, attended: Tensor) -> Tensor:
        return attended if self.project is None else (attended + self.project.bias).relu()

    def weight_norms(self) -> Tensor | None:
        weight = self.classifier.weight
        return weight.norm(dim=1) if len(weight) == self.num_labels else None  # None for a shared classifier

    def pair_features(self, features: Features, targets: Targets, tokens: Tensors | None = None) -> Tensor:
        """Features of the positive pairs, (pairs, width); `tokens` as in `label_loss`."""
        tokens = self.per_token(features) if tokens is None else tokens
        if self.query is None:
            return self.activate(tokens[-1][targets.rows, 0])
        return self.activate(attend_pairs(self.query[targets.indices], tokens[0], tokens[-1], features.mask, targets))

    # --- losses

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        tokens = self.per_token(features)
        terms = {"bce": self.label_loss(features, targets, tokens)}
        if self.is_adjusting:
            if self.augments:
                terms["augmented"] = self.augment_weight * self.augmented_loss(len(features.mask))
        elif self.has_prototypes and self.psc_weight:
            known = targets.below(self.num_labels)
            pairs = self.pair_features(features, known, tokens)
            contrast = contrastive_loss(pairs, known.indices, self.prototypes, self.support, self.temperature)
            factor = psc_factor(self.psc_scale, len(features.mask), len(pairs), self.num_labels)
            terms["psc"] = self.psc_weight * factor * contrast
        return terms | {"loss": torch.stack(list(terms.values())).sum()}

    def augmented_loss(self, documents: int) -> Tensor:
        """L_aug / N (Eq. 19), estimated from the batch's share of an epoch's generated features."""
        every = len(self.tail_labels) * self.samples
        size = max(round(documents * every / self.num_documents), 1)
        drawn = torch.randint(len(self.tail_labels), (size,), device=self.tail_labels.device)
        labels = self.tail_labels[drawn]
        weight, bias = self.classifier.rows()
        logits = (weight[labels] * self.generate(labels)).sum(-1) + bias[labels]
        return every / self.num_documents * F.softplus(-logits).mean()

    @torch.no_grad()
    def generate(self, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Generate a feature for each of `labels` (Eq. 18), (n, width)."""
        return self.pvae.generate(self.pvae.noise(len(labels), generator), self.prototypes[labels])

    # --- transitions

    @torch.no_grad()
    def start_representation(self, ctx: TransitionContext) -> None:
        """Reset prototypes and flags, which may come from the checkpoint of an earlier run."""
        for made in (self.prototypes, self.support, self.generates, self.adjusting):
            made.zero_()
        self._sync_flags()

    @torch.no_grad()
    def refresh_prototypes(self, ctx: TransitionContext) -> None:
        """Recompute the prototypes with the current weights, without storing features.

        In epochs without the contrastive term they are zero, which turns it off.
        """
        if not self.psc_weight:
            return
        if ctx.epoch < self.psc_start or ctx.epoch % self.psc_every:
            self._set_prototypes(torch.zeros_like(self.prototypes), torch.zeros_like(self.support))
            return
        sums = torch.zeros(self.num_labels, self.width + 1, dtype=torch.float64, device=self.prototypes.device)
        for pairs, _, labels in self._pairs(ctx):
            sums.index_add_(0, labels, F.pad(pairs, (0, 1), value=1.0).double())
        sums = ctx.sum(sums)
        self._set_prototypes(sums[:, :-1] / sums[:, -1:].clamp_min(1), sums[:, -1])

    @torch.no_grad()
    def collect_bank(self, ctx: TransitionContext) -> None:
        """Store the features of all positive pairs and compute prototypes (Eq. 10), if augmentation is on."""
        if not self.augments:
            return
        bank = FeatureBank(ctx.train_targets(), self.num_labels, self.width, self.bank_memory)
        for pairs, documents, _ in self._pairs(ctx):
            bank.put(documents, pairs)
        bank.share(ctx.sum, self.prototypes.device)
        self._set_prototypes(bank.prototypes(), bank.support)
        self.bank = bank

    def _pairs(self, ctx: TransitionContext) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features of positive pairs, documents of the batch, and the label of each pair."""
        for features, batch in ctx.train_features():
            known = batch.targets.below(self.num_labels)
            yield self.pair_features(features, known), batch.rows, known.indices

    def _set_prototypes(self, prototypes: Tensor, support: Tensor) -> None:
        self.prototypes.copy_(prototypes)
        self.support.copy_(support)
        self._sync_flags()

    @torch.no_grad()
    def train_pvae(self, ctx: TransitionContext) -> None:
        """Train the PVAE on the features of head labels, then free the bank."""
        if self.augments:
            if self.bank is None:
                self.collect_bank(ctx)
            assert self.bank is not None
            rows = self.is_head[self.bank.labels].nonzero().flatten()
            pairs = Pairs(self.bank.features, self.bank.labels, self.prototypes, rows)
            generator = torch.Generator().manual_seed(ctx.seed)
            log = train_pvae(self.pvae, pairs, self.pvae_training, generator, ctx.track, ctx.sum)
            self.generates.fill_(True)
            self._sync_flags()
            ctx.log({f"pvae/{name}": value for name, value in (log | self._examine(generator)).items()})
        self.bank = None

    def _examine(self, generator: torch.Generator) -> dict[str, float]:
        """Diagnostics of generated features: relative offset of their mean from the prototype, and relative spread."""
        chosen = torch.randperm(len(self.tail_labels), generator=generator)[:200]
        tail = self.tail_labels[chosen.to(self.tail_labels.device)]
        made = self.generate(tail.repeat_interleave(DRAWS), generator).view(len(tail), DRAWS, -1)
        off = (made.mean(1) - self.prototypes[tail]).norm(dim=-1) / self.prototypes[tail].norm(dim=-1).clamp_min(1e-9)
        spread = made.std(1).mean(-1) / self.pvae.deviation.mean()
        return {"off_prototype": float(off.median()), "spread": float(spread.median())}

    @torch.no_grad()
    def start_adjustment(self, ctx: TransitionContext) -> None:
        """Switch to the loss of Eq. 19 plus that of the real documents."""
        if self.restart == "reset":
            self.classifier.reset()
        self.adjusting.fill_(True)
        self._sync_flags()


class Classifier(nn.Module):
    """One vector per label, or a shared one, and optional biases initialized with `start` (num_labels,)."""

    def __init__(self, start: Tensor, width: int, shared: bool, bias: bool) -> None:
        super().__init__()
        self.num_labels, self.prior = len(start), start
        self.weight = nn.Parameter(torch.empty(1 if shared else len(start), width))
        self.bias = nn.Parameter(torch.empty(len(start))) if bias else None
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.weight.copy_(xavier(*self.weight.shape))
        if self.bias is not None:
            self.bias.copy_(self.prior)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Vectors (num_labels, width) and biases (num_labels,)."""
        # Not expanded if possible: the loss would then keep a second gradient.
        weight = self.weight if len(self.weight) == self.num_labels else self.weight.expand(self.num_labels, -1)
        return weight, self.weight.new_zeros(self.num_labels) if self.bias is None else self.bias


def xavier(*shape: int) -> Tensor:
    return nn.init.xavier_uniform_(torch.empty(*shape))
