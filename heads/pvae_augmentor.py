"""LSFA: features for each label, and more of them for rare labels than there are documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import TransitionContext, check_low
from heads.blockwise import Tensors
from heads.feature_bank import FeatureBank
from heads.label_attention import LabelwiseHead, attend, attend_pairs
from heads.pvae import PVAE, Pairs, PVAETraining, train_pvae

DRAWS = 256  # generated features of a label that show how they lie


class PvaeAugmentor(LabelwiseHead):
    """Label attention whose classifiers are adjusted with generated features of rare labels.

    After Xu et al. 2023, "Label-Specific Feature Augmentation for Long-Tailed Multi-Label Text Classification". In
    the first stage label-specific features (Eq. 1-5) are trained with a contrastive term that draws them to their
    label's prototype, their mean (Eq. 9). `collect_bank` then keeps the features of all positive pairs, `train_pvae`
    learns from those of head labels how features vary around a prototype (Eq. 11-17), and after `start_adjustment`
    the loss has generated features of tail labels beside the real ones (Eq. 18-19).

    Args:
        feat_dim: features are ReLU(W v + b) of so many dimensions, as in the official code; None makes them the
            attention's output v itself, as in the paper.
        classifier: a vector for each label, or one that all labels share, which no feature can adjust for one label.
        bias: a constant beside each label's classifier, at the label's prior to begin with.
        label_specific: False takes the document's vector as the feature of all labels (the paper's ablation D).
        negatives: other labels than those of the batch to train on, drawn anew for each; all by default.
        psc_weight: of the contrastive term (alpha); 0 leaves it out.
        temperature: of the contrastive term's softmax (tau).
        psc_start: epoch of the first stage from which `refresh_prototypes` makes prototypes and the term counts.
        head_count: labels with at least so many training documents are head (N_t); None takes the most frequent tenth.
        samples: generated features of each tail label in an epoch (N_a); 0 leaves augmentation out.
        augment_weight: of their term (gamma).
        restart: whether classifiers begin anew when they are adjusted, or go on from the first stage.
        pvae: how the autoencoder is trained.
        pvae_hidden: width of its layers.
        latent: width of its variations.
        bank_memory: bytes above which the bank of features, of which every process has one, is kept on disk.
    """

    prototypes: Tensor  # (num_labels, width)
    support: Tensor  # (num_labels,) documents in each of them
    generates: Tensor  # whether `train_pvae` has run
    adjusting: Tensor  # whether `start_adjustment` has run
    tail_labels: Tensor  # those with documents

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        feat_dim: int | None = 300,
        classifier: Literal["per_label", "shared"] = "per_label",
        bias: bool = False,
        label_specific: bool = True,
        negatives: int | None = None,
        psc_weight: float = 0.1,
        temperature: float = 0.07,
        psc_start: int = 0,
        head_count: int | None = 50,
        samples: int = 10,
        augment_weight: float = 1.0,
        restart: Literal["reset", "warm"] = "reset",
        pvae: PVAETraining | None = None,
        pvae_hidden: int = 512,
        latent: int = 300,
        bank_memory: float = 2e9,
    ) -> None:
        super().__init__(dim, space, negatives)
        check_low(1, feat_dim=feat_dim, head_count=head_count, pvae_hidden=pvae_hidden, latent=latent)
        check_low(0, psc_weight=psc_weight, psc_start=psc_start, samples=samples, augment_weight=augment_weight)
        check_low(0, bank_memory=bank_memory)
        check_low(1e-6, temperature=temperature)
        self.num_documents, self.restart = space.num_documents, restart
        self.psc_weight, self.temperature, self.psc_start = psc_weight, temperature, psc_start
        self.samples, self.augment_weight = samples, augment_weight
        self.pvae_training, self.bank_memory = pvae or PVAETraining(), bank_memory
        self.needs_tokens = label_specific
        self.query = nn.Parameter(xavier(space.num_labels, dim)) if label_specific else None
        self.project = nn.Linear(dim, feat_dim) if feat_dim else None
        self.width = feat_dim or dim
        self.classifier = Classifier(space, self.width, classifier == "shared", bias)
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
        self._note_progress()
        if self.augments and not self.is_head.any():
            raise UserError(
                f"no label has {head_count} training documents, so there is none to learn variations from: set "
                f"--model.head.head_count to {max(space.counts)} or less, or --model.head.samples=0 for no augmentation"
            )

    @property
    def augments(self) -> bool:
        return self.samples > 0 and len(self.tail_labels) > 0

    @property
    def pending(self) -> tuple[str, ...]:
        missing = {"train_pvae": not self.has_pvae, "start_adjustment": not self.is_adjusting}
        return tuple(name for name, is_missing in missing.items() if is_missing and self.augments)

    def _note_progress(self) -> None:
        """For Python: reading a buffer makes a GPU wait."""
        self.has_prototypes = bool(self.prototypes.any())
        self.has_pvae, self.is_adjusting = bool(self.generates), bool(self.adjusting)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        # A PVAE of another size was not taken over, and this one has learned nothing.
        self.generates &= all(f"{prefix}pvae.{name}" in state_dict for name in self.pvae.state_dict())
        self._note_progress()

    # --- features and scores

    def per_token(self, features: Features) -> Tensors:
        tokens = features.tokens if self.query is not None else features.pooled.unsqueeze(1)
        # Attention is linear in the tokens: the projection goes before it, where there is less to compute.
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
        return weight.norm(dim=1) if len(weight) == self.num_labels else None  # otherwise all share one

    def pair_features(self, features: Features, targets: Targets, tokens: Tensors | None = None) -> Tensor:
        """Features of the positive pairs alone, (pairs, width); `tokens` as in `bce`."""
        tokens = self.per_token(features) if tokens is None else tokens
        if self.query is None:
            return self.activate(tokens[-1][targets.rows, 0])
        return self.activate(attend_pairs(self.query[targets.indices], tokens[0], tokens[-1], features.mask, targets))

    # --- losses

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        tokens = self.per_token(features)
        terms = {"bce": self.bce(features, targets, tokens)}
        if self.is_adjusting:
            if self.augments:
                terms["augmented"] = self.augment_weight * self.augmented_loss(len(features.mask))
        elif self.has_prototypes and self.psc_weight:
            known = targets.below(self.num_labels)
            pairs = self.pair_features(features, known, tokens)
            contrast = contrastive_loss(pairs, known.indices, self.prototypes, self.support, self.temperature)
            terms["psc"] = self.psc_weight * contrast
        return terms | {"loss": torch.stack(list(terms.values())).sum()}

    def augmented_loss(self, documents: int) -> Tensor:
        """L_aug / N (Eq. 19), estimated with as many generated features as are these documents' share of all."""
        every = len(self.tail_labels) * self.samples
        size = max(round(documents * every / self.num_documents), 1)
        drawn = torch.randint(len(self.tail_labels), (size,), device=self.tail_labels.device)
        labels = self.tail_labels[drawn]
        weight, bias = self.classifier.rows()
        logits = (weight[labels] * self.generate(labels)).sum(-1) + bias[labels]
        return every / self.num_documents * F.softplus(-logits).mean()

    @torch.no_grad()
    def generate(self, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A new feature for each of `labels` (Eq. 18), (n, width)."""
        return self.pvae.generate(self.pvae.noise(len(labels), generator), self.prototypes[labels])

    # --- transitions

    @torch.no_grad()
    def start_representation(self, ctx: TransitionContext) -> None:
        """Forget what later stages, or an earlier run that the weights come from, have made of other features."""
        for made in (self.prototypes, self.support, self.generates, self.adjusting):
            made.zero_()
        self._note_progress()

    @torch.no_grad()
    def refresh_prototypes(self, ctx: TransitionContext) -> None:
        """Prototypes of the weights as they are now; summed as they come, no feature is kept."""
        if ctx.epoch < self.psc_start or not self.psc_weight:
            return
        sums = torch.zeros(self.num_labels, self.width + 1, dtype=torch.float64, device=self.prototypes.device)
        for pairs, _, labels in self._pairs(ctx):
            sums.index_add_(0, labels, F.pad(pairs, (0, 1), value=1.0).double())
        sums = ctx.sum(sums)
        self._take_prototypes(sums[:, :-1] / sums[:, -1:].clamp_min(1), sums[:, -1])

    @torch.no_grad()
    def collect_bank(self, ctx: TransitionContext) -> None:
        """Features of all positive pairs, and their prototypes (Eq. 10); nothing where none are to be generated."""
        if not self.augments:
            return
        bank = FeatureBank(ctx.train_targets(), self.num_labels, self.width, self.bank_memory)
        for pairs, documents, _ in self._pairs(ctx):
            bank.put(documents, pairs)
        bank.share(ctx.sum, self.prototypes.device)
        self._take_prototypes(bank.prototypes(), bank.support)
        self.bank = bank

    def _pairs(self, ctx: TransitionContext) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features of positive pairs, the documents that they are of, and the label of each pair; batch by batch."""
        for features, batch in ctx.train_features():
            known = batch.targets.below(self.num_labels)
            yield self.pair_features(features, known), batch.rows, known.indices

    def _take_prototypes(self, prototypes: Tensor, support: Tensor) -> None:
        self.prototypes.copy_(prototypes)
        self.support.copy_(support)
        self._note_progress()

    @torch.no_grad()
    def train_pvae(self, ctx: TransitionContext) -> None:
        """Learn how features of head labels vary, and let go of the bank."""
        if self.augments:
            if self.bank is None:
                self.collect_bank(ctx)
            assert self.bank is not None
            rows = self.is_head[self.bank.labels].nonzero().flatten()
            pairs = Pairs(self.bank.features, self.bank.labels, self.prototypes, rows)
            generator = torch.Generator().manual_seed(ctx.seed)
            log = train_pvae(self.pvae, pairs, self.pvae_training, generator, ctx.track, ctx.sum)
            self.generates.fill_(True)
            self._note_progress()
            ctx.log({f"pvae/{name}": value for name, value in (log | self._examine(generator)).items()})
        self.bank = None

    def _examine(self, generator: torch.Generator) -> dict[str, float]:
        """How generated features lie: off the prototype on average, and spread, both relative; medians of labels."""
        tail = self.tail_labels[
            torch.randperm(len(self.tail_labels), generator=generator)[:200].to(self.tail_labels.device)
        ]
        made = self.generate(tail.repeat_interleave(DRAWS), generator).view(len(tail), DRAWS, -1)
        off = (made.mean(1) - self.prototypes[tail]).norm(dim=-1) / self.prototypes[tail].norm(dim=-1).clamp_min(1e-9)
        spread = made.std(1).mean(-1) / self.pvae.deviation.mean()
        return {"off_prototype": float(off.median()), "spread": float(spread.median())}

    @torch.no_grad()
    def start_adjustment(self, ctx: TransitionContext) -> None:
        """From now on the loss is that of Eq. 19 with real documents."""
        if self.restart == "reset":
            self.classifier.reset()
        self.adjusting.fill_(True)
        self._note_progress()


class Classifier(nn.Module):
    """A vector for each label, or one for all, and a bias."""

    def __init__(self, space: LabelSpace, width: int, shared: bool, bias: bool) -> None:
        super().__init__()
        self.num_labels, self.prior = space.num_labels, space.prior().logit()
        self.weight = nn.Parameter(torch.empty(1 if shared else space.num_labels, width))
        self.bias = nn.Parameter(torch.empty(space.num_labels)) if bias else None
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.weight.copy_(xavier(*self.weight.shape))
        if self.bias is not None:
            self.bias.copy_(self.prior)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Vectors (num_labels, width) and biases (num_labels,)."""
        # The parameter itself where possible: for an expanded one the loss would keep a second gradient.
        weight = self.weight if len(self.weight) == self.num_labels else self.weight.expand(self.num_labels, -1)
        return weight, self.weight.new_zeros(self.num_labels) if self.bias is None else self.bias


def xavier(*shape: int) -> Tensor:
    return nn.init.xavier_uniform_(torch.empty(*shape))


def contrastive_loss(
    features: Tensor, labels: Tensor, prototypes: Tensor, support: Tensor, temperature: float
) -> Tensor:
    """L_PSC: cross-entropy of a pair's cosines to all prototypes, its own label's being the right one; mean of pairs.

    Eq. 9 with its sign put right, and the own prototype in the denominator, where it bounds the loss. Labels without
    a prototype take no part.
    """
    with torch.autocast(features.device.type, enabled=False):  # the temperature widens what rounding leaves
        cosines = F.normalize(features.float(), dim=-1) @ F.normalize(prototypes, dim=-1).T  # (pairs, num_labels)
    logits = (cosines / temperature).masked_fill(support == 0, -torch.inf)
    counted = support[labels] > 0
    # a label without a prototype would be infinitely wrong: its pair counts as some other's, times 0
    losses = F.cross_entropy(logits, labels.where(counted, support.argmax()), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp_min(1)
