"""The head contract: `loss` for training, `rank` for everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.loss_base import MakeLoss
from heads.losses import BCE
from zoo.core.errors import UserError
from zoo.core.errors import check_low as check_low
from zoo.core.exporting import is_exporting

T = TypeVar("T")
NEIGHBORS = 3  # similar documents that explain a label


@dataclass(frozen=True)
class Ranking:
    """The k best labels of each document, best first; rows with fewer candidates are padded with label -1, score 0."""

    scores: Tensor  # (batch, k), probabilities
    labels: Tensor  # (batch, k) int64


class Neighbors(NamedTuple):
    """Similar training documents of labels, the most similar first; padded with row -1."""

    rows: Tensor  # (batch, n, documents) int64
    cosines: Tensor  # (batch, n, documents)
    ids: list[str]  # of all training documents; empty if unknown

    def of(self, document: int, place: int) -> list[tuple[str, float]]:
        """Id, or else row, and cosine of each neighbor of a label."""
        found = zip(self.rows[document, place].tolist(), self.cosines[document, place].tolist(), strict=True)
        return [(self.ids[row] if row < len(self.ids) else str(row), cosine) for row, cosine in found if row >= 0]


class TransitionContext:
    """Data and collective operations for a head's transition between stages or epochs.

    All processes run a transition at the same point. This class serves a single process with encoded documents in
    memory, as in tests and notebooks; a run uses `callbacks.transition.TrainerContext`.

    Args:
        features: encoded training documents, in corpus order.
        targets: labels of the training documents.
        words: token counts of the training documents, (documents, vocabulary).
        val: features and labels of the validation documents.
        labels: batches of encoded label texts; `rows` of a batch are the labels.
        backbone: the encoder, for heads that change it.
        seed: seed of the run, the same on every process.
        epoch: epoch within the stage, from 0; 0 when the stage is entered.
        first: whether this is the first process. After the transition, its head is broadcast to all others.
        batch_size: documents per batch of features.
        ids: ids of the training documents, in corpus order; empty if unknown.
    """

    def __init__(
        self,
        features: Features | None = None,
        targets: Targets | None = None,
        words: csr_array | None = None,
        val: tuple[Features, Targets] | None = None,
        labels: Iterable[tuple[Features, Batch]] = (),
        backbone: Backbone | None = None,
        seed: int = 0,
        epoch: int = 0,
        first: bool = True,
        batch_size: int = 256,
        ids: Sequence[str] = (),
    ) -> None:
        self.ids = list(ids)
        self.features, self.targets, self.words, self.val, self.labels = features, targets, words, val, list(labels)
        self.backbone, self.seed, self.epoch, self.first = backbone, seed, epoch, first
        self.batch_size = batch_size
        self.logged: dict[str, float] = {}

    def train_targets(self) -> Targets:
        """Labels of all training documents, in corpus order."""
        return present(self.targets, "targets")

    def train_words(self, lead: int = 0) -> csr_array:
        """Token counts of the training documents, in corpus order, (documents, vocabulary).

        With `lead`, there are further columns for the words and word pairs at the beginning of documents, see
        `datamodules.prepare.bags`.
        """
        return present(self.words, "words")

    def train_ids(self) -> list[str]:
        """Ids of the training documents, in corpus order; empty if unknown."""
        return self.ids

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        """Append the stage's augmented copies to word weights and labels of all training documents, or of `rows`.

        Copies come from `TailAugment`; without it the input is returned.
        """
        return words, targets

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        """Encode all training documents, or `rows`, in evaluation mode: each once over all processes together.

        `batch.rows` are positions in the corpus.
        """
        targets = self.train_targets()
        return self._batches(present(self.features, "features"), targets, self._share(len(targets), rows))

    def train_vectors(self, dim: int, device: torch.device) -> Tensor:
        """Document vectors of all training documents, in corpus order, (documents, dim), on the CPU of every process.

        `device` is that of the all-reduces.
        """
        vectors = torch.zeros(len(self.train_targets()), dim)
        for features, batch in self.train_features():
            vectors[batch.rows.cpu()] = features.pooled.float().cpu()
        for part in torch.split(vectors, 2**14):  # rows of other processes are zeros
            part.copy_(self.sum(part.to(device)))
        return vectors

    def val_targets(self) -> Targets:
        """Labels of all validation documents, in corpus order."""
        return present(self.val, "val")[1]

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        """Encode all validation documents in evaluation mode: each once over all processes together."""
        features, targets = present(self.val, "val")
        return self._batches(features, targets, self._share(len(targets), None))

    def label_features(self, unseen: bool = False) -> Iterator[tuple[Features, Batch]]:
        """Encode the texts of all labels with known words: each once over all processes together.

        `batch.rows` are the labels. Texts are label descriptions, or else label names. With `unseen`, labels without
        training documents are among them, if they are scored.
        """
        return iter(self.labels)

    def label_batches(self, unseen: bool = False) -> Iterator[Batch]:
        """As `label_features`, but only the tokens; negative `rows` are padding of processes."""
        return (batch for _, batch in self.labels)

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Iterate over the items of a long loop, the same number on every process, with a progress bar in a run.

        SIGTERM ends the loop.
        """
        return iter(items)

    def sum(self, value: Tensor) -> Tensor:
        """Sum of `value` over all processes."""
        return value.clone()

    def log(self, values: Mapping[str, float]) -> None:
        """Log values, in a run to its loggers."""
        self.logged.update(values)

    def _share(self, size: int, rows: Tensor | None) -> Tensor:
        """Rows that this process reads."""
        return torch.arange(size) if rows is None else rows

    @torch.no_grad()
    def _batches(self, features: Features, targets: Targets, rows: Tensor) -> Iterator[tuple[Features, Batch]]:
        for part in torch.split(rows, self.batch_size):
            found = features.take(part)
            empty = Batch(torch.zeros(found.mask.shape, dtype=torch.long), found.mask, targets, part)
            batch = replace(found.batch or empty, targets=targets.take(part), rows=part, vectors=found.pooled)
            yield replace(found, batch=batch), batch


def present(value: T | None, name: str) -> T:
    if value is None:
        raise ValueError(f"this TransitionContext was made without `{name}`")
    return value


class Head(nn.Module, ABC):
    """Base class of heads; implement `loss` and `rank`, or derive from `DenseHead`.

    Methods that take a `TransitionContext` are transitions: a stage names them in `on_enter` or `each_epoch`. Methods
    that take the training `Targets` and a seed and return row numbers choose training documents: a stage names them in
    `documents`. Methods of inner heads have dotted names, such as `inner.fit`.
    """

    needs_tokens: bool = False  # needs a backbone with token states
    needs_layers: int = 1  # least number of backbone layers

    def __init__(self, dim: int, space: LabelSpace) -> None:
        super().__init__()
        self.dim, self.num_labels = dim, space.num_labels

    @abstractmethod
    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Loss terms by name; `loss` is the one to minimise. Sum over labels, mean over documents."""

    @abstractmethod
    def rank(self, features: Features, k: int) -> Ranking:
        """Rank the k best labels of each document."""

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        """Rankings to evaluate, by name; "" is the head's own."""
        return {"": self.rank(features, k)}

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        """Head-specific metrics of validation and test documents, (batch,), by name; NaN if undefined."""
        return {}

    def weight_norms(self) -> Tensor | None:
        """Norm of each label's weights, without its bias, (num_labels,); None if weights are shared."""
        return None

    def label_vectors(self) -> Tensor | None:
        """Trainable vector of each label, (num_labels, any): weights or attention queries; None without one."""
        return None

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        """Attention of `labels` (batch, n) over the tokens, (batch, n, length); None without label attention."""
        return None

    def token_contributions(self, features: Features, labels: Tensor) -> Tensor | None:
        """What each token of the batch adds to the scores of `labels` (batch, n), (batch, n, length of the batch).

        Of label -1 anything. None if the head does not know: the gradient of the score is used then.
        """
        return None

    def neighbors(self, features: Features, labels: Tensor) -> Neighbors | None:
        """The most similar training documents with each of `labels` (batch, n); None if the head has none in store."""
        return None

    @property
    def pending(self) -> tuple[str, ...]:
        """Transitions that the head still needs: a later stage must name them in `on_enter`."""
        return tuple(f"{name}.{method}" for name, part in self.inner_heads.items() for method in part.pending)

    @property
    def inner_heads(self) -> dict[str, Head]:
        """Heads that this one wraps, by name."""
        return {name: child for name, child in self.named_children() if isinstance(child, Head)}

    def check_plan(self, transitions: Sequence[str]) -> None:
        """Raise a `UserError` if the transitions of the remaining stages, in order, do not make sense together."""
        for name, part in self.inner_heads.items():
            part.check_plan([t.removeprefix(f"{name}.") for t in transitions if t.startswith(f"{name}.")])

    def learn_labels(
        self,
        space: LabelSpace,
        examples: Iterable[tuple[Features, Targets]],
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Add the labels at the end of `space`, and update known ones, without training.

        Args:
            space: label space with the new labels at the end of `names`.
            examples: documents with their labels.
            texts: tokens of the texts of new labels, for heads that read label texts.
        """
        raise UserError(
            f"{type(self).__name__} cannot add labels: use PrototypeTransfer, DualEncoder or NearestNeighbours, "
            "or a Blend with one of them"
        )


class DenseHead(Head):
    """Base class of heads with one logit per label; implement `forward`.

    Args:
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    def __init__(self, dim: int, space: LabelSpace, loss: MakeLoss | None = None) -> None:
        super().__init__(dim, space)
        self.criterion = (loss or BCE)(space)

    @abstractmethod
    def forward(self, features: Features) -> Tensor:
        """Logits (batch, num_labels)."""

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return {"loss": self.criterion(self(features), targets)}

    def rank(self, features: Features, k: int) -> Ranking:
        # In single precision: half precision makes ties, which are broken in favor of frequent labels.
        with torch.autocast(features.pooled.device.type, enabled=False):
            return ranked(self(features.float()), k)


def probabilities(logits: Tensor) -> Tensor:
    """Sigmoid in single precision, via double: the last bit of a float sigmoid on a CPU depends on its position."""
    return (logits if logits.device.type == "mps" else logits.double()).sigmoid().float()  # MPS has no double


def ranked(logits: Tensor, k: int) -> Ranking:
    """The k best labels with their probabilities, ranked by logit: large probabilities round to ties."""
    top = top_labels(logits.float(), k)
    return Ranking(probabilities(top.scores) * (top.labels >= 0), top.labels)


def top_candidates(scores: Tensor, labels: Tensor, k: int) -> Ranking:
    """The k best of candidate labels (batch, n), the first of ties; padded with -1 where scores are -inf."""
    best = top_labels(scores, k)
    known = (best.labels >= 0) & (best.scores > -torch.inf)
    return Ranking(best.scores, labels.gather(1, best.labels.clamp_min(0)).where(known, -1))


def top_labels(scores: Tensor, k: int) -> Ranking:
    """The k largest of dense scores (batch, labels), the lower label of ties; short rows are padded with -1."""
    size = min(k, scores.shape[1])
    values, labels = scores.topk(size, dim=1)
    # topk breaks ties arbitrarily: sort by label, then stably by score.
    labels, by_label = labels.sort(dim=1)
    values, best = values.gather(1, by_label).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, best)
    tied_at_k = (scores >= values[:, -1:]).sum(1) > size
    if not is_exporting() and tied_at_k.any():  # ONNX itself prefers the lower label
        ordered = scores[tied_at_k].sort(dim=1, descending=True, stable=True)
        labels[tied_at_k] = ordered.indices[:, :size]
    padding = (0, k - size)
    return Ranking(F.pad(values, padding), F.pad(labels, padding, value=-1))
