"""The head contract: a loss for training, a ranking for everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranking:
    """The best k labels of each document, best first; rows with fewer candidates end in label -1, score 0."""

    scores: Tensor  # (batch, k), probabilities
    labels: Tensor  # (batch, k) int64


class TransitionContext(Protocol):
    """What a head may use in a transition, between stages or epochs, which runs on every process at once."""

    seed: int  # of the run: draws that begin with it are the same on every process
    first: bool  # whether this is the first process: when the transition ends, all heads become like its own
    backbone: Backbone
    epoch: int  # within the stage, from 0; 0 on entering it

    def train_targets(self) -> Targets:
        """Labels of all training documents, in corpus order."""

    def train_words(self, lead: int = 0) -> csr_array:
        """How often each training document has each token, in corpus order, (documents, vocabulary).

        With `lead`, further columns are of the words and pairs of words that it begins with, see `datamodules.bags`.
        """

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        """All training documents (`rows` of them, if given) as weights of words, and their labels: with the copies
        added that the stage gives to documents with rare labels, if it does."""

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        """Every training document (each of `rows`, if given) once over all processes together, in evaluation mode.

        `batch.rows` numbers them, in corpus order.
        """

    def val_targets(self) -> Targets:
        """Labels of all validation documents, in corpus order."""

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        """Every validation document once over all processes together, in evaluation mode."""

    def label_features(self) -> Iterator[tuple[Features, Batch]]:
        """The text of every label that has known words, once over all processes together, in evaluation mode.

        `batch.rows` are the labels. Where the corpus does not say what labels mean, their names are the texts.
        """

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items of a long loop, as many on every process: with a progress bar, and SIGTERM ends it."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum of `value` over all processes."""

    def log(self, values: Mapping[str, float]) -> None:
        """Numbers worth keeping, for the logger."""


class Head(nn.Module, ABC):
    """Scores labels from features. `DenseHead` is the short way to a new one.

    A method that takes a `TransitionContext` can be named in `on_enter` and `each_epoch` of a stage; one that takes
    the training `Targets` and a seed, and returns row numbers, in its `documents`. Of a head that has others in it,
    theirs go by dotted names, such as `inner.fit`.
    """

    needs_tokens: bool = False  # True: refuses a backbone that has no token states
    needs_layers: int = 1  # refuses a backbone with fewer layers

    def __init__(self, dim: int, space: LabelSpace) -> None:
        super().__init__()
        self.dim, self.num_labels = dim, space.num_labels

    @abstractmethod
    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Loss terms of a stage; the one to minimise is `loss`. Sum over labels, mean over documents."""

    @abstractmethod
    def rank(self, features: Features, k: int) -> Ranking:
        """The k best labels."""

    def rankings(self, features: Features, k: int) -> dict[str, Ranking]:
        """Its own ranking, named "", and those of parts that rank labels too, by name: each is measured."""
        return {"": self.rank(features, k)}

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        """Numbers of its own for each validation and test document, (batch,), by name; NaN where there is none."""
        return {}

    def weight_norms(self) -> Tensor | None:
        """Length of the weights of each label, without its bias, (num_labels,); None where it has none of its own."""
        return None

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        """How much each of `labels` (batch, n) looks at each token, (batch, n, length); None where labels do not."""
        return None

    @property
    def pending(self) -> tuple[str, ...]:
        """Transitions without which the head is of no use: some stage that is to come must name them in `on_enter`."""
        return tuple(f"{name}.{method}" for name, part in self.inner_heads.items() for method in part.pending)

    @property
    def inner_heads(self) -> dict[str, Head]:
        """Heads that are part of it, by name."""
        return {name: child for name, child in self.named_children() if isinstance(child, Head)}

    def check_plan(self, transitions: Sequence[str]) -> None:
        """Refuse transitions of the stages to come, in their order, that make no sense together."""
        for name, part in self.inner_heads.items():
            part.check_plan([t.removeprefix(f"{name}.") for t in transitions if t.startswith(f"{name}.")])

    def learn_labels(self, space: LabelSpace, examples: Iterable[tuple[Features, Targets]]) -> None:
        """Without training: take in the labels that `space` has at its end, and update known ones, from documents."""
        raise UserError(f"{type(self).__name__} cannot make a classifier from a few documents: PrototypeTransfer can")


class DenseHead(Head):
    """A head with one logit for each label: write `forward`, get loss and ranking."""

    @abstractmethod
    def forward(self, features: Features) -> Tensor:
        """Logits (batch, num_labels)."""

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return {"loss": bce(self(features), targets)}

    def rank(self, features: Features, k: int) -> Ranking:
        # In single precision: half of it makes ties among the best, which go to the more frequent labels.
        with torch.autocast(features.pooled.device.type, enabled=False):
            return ranked(self(features.float()), k)


def check_low(low: float, **values: float | None) -> None:
    """Settings of a head, by name, that are none or at least `low`."""
    for name, value in values.items():
        if value is not None and not value >= low:
            raise UserError(f"--model.head.{name}={value} is too low: the lowest is {low:g}")


def bce(logits: Tensor, targets: Targets) -> Tensor:
    """Binary cross-entropy, summed over labels and averaged over documents: the zoo's one convention.

    Equals sum softplus(x) - sum over positives of x, so that no dense target matrix is needed.
    """
    logits = logits.float()
    last = logits.shape[1] - 1
    positives = logits[targets.rows, targets.indices.clamp_max(last)] * (targets.indices <= last)
    return (F.softplus(logits).sum() - positives.sum()) / len(logits)


def probabilities(logits: Tensor) -> Tensor:
    """Sigmoid in single precision, the same wherever a logit stands: on a CPU its last bit depends on the place."""
    return (logits if logits.device.type == "mps" else logits.double()).sigmoid().float()  # MPS has no double


def ranked(logits: Tensor, k: int) -> Ranking:
    """The k best labels by logit: the sigmoid of sure ones rounds to one and the same number."""
    top = top_labels(logits.float(), k)
    return Ranking(probabilities(top.scores) * (top.labels >= 0), top.labels)


def top_labels(scores: Tensor, k: int) -> Ranking:
    """The k largest of dense scores (batch, labels); short rows are filled with label -1."""
    size = min(k, scores.shape[1])
    values, labels = scores.topk(size, dim=1)
    # Of equal scores topk takes any, in any order: lower labels, the more frequent ones, are to go first.
    labels, by_label = labels.sort(dim=1)
    values, best = values.gather(1, by_label).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, best)
    cut_among_equals = (scores >= values[:, -1:]).sum(1) > size
    if cut_among_equals.any():
        ordered = scores[cut_among_equals].sort(dim=1, descending=True, stable=True)
        labels[cut_among_equals] = ordered.indices[:, :size]
    short = (0, k - size)
    return Ranking(F.pad(values, short), F.pad(labels, short, value=-1))
