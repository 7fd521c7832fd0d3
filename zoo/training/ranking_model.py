"""A backbone with a head on top, and prediction without Lightning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace
from datamodules.prepare.vocabulary import Vocabulary
from heads.base import Head, Ranking
from heads.dual.label_text_head import LabelTextHead
from zoo.core.errors import UserError
from zoo.training.calibration import Calibration
from zoo.training.stored import FORMAT, check_weights

MakeBackbone = Callable[[LabelSpace], Backbone]
MakeHead = Callable[[int, LabelSpace], Head]
THRESHOLDS = ("val_metrics.tuned_threshold", "test_metrics.tuned_threshold")  # in the state dict of a `ZooModule`


@runtime_checkable
class Indexed(Protocol):
    """A module with buffers of indices."""

    def check_indices(self) -> None:
        """Refuse indices that are out of range or inconsistent."""


class BackboneWithHead(nn.Module):
    """What training (`ZooModule`) and prediction (`RankingModel`) share.

    In addition to the weights, a checkpoint stores `config_text`, `space` and `vocabulary`, so that the file alone is
    enough to rebuild the model.
    """

    def __init__(self, space: LabelSpace, backbone: MakeBackbone, head: MakeHead, depth: int) -> None:
        super().__init__()
        self.space, self.depth = space, depth
        self.backbone = backbone(space)
        self.head = head(self.backbone.dim, space)
        share_backbone(self.head, self.backbone)
        check_pair(self.backbone, self.head)
        self.config_text: str | None = None
        self.vocabulary: Vocabulary | None = None
        self.calibration: Calibration | None = None

    def forward(self, batch: Batch) -> Features:
        features: Features = self.backbone(batch)
        return replace(features, batch=replace(batch, vectors=features.pooled))

    def rank(self, batch: Batch, k: int) -> Ranking:
        """Return the k best labels of each document."""
        features = self(batch)
        if self.calibration is None:
            return self.head.rank(features, k)
        return self.calibration.rank(lambda depth: self.head.rank(features, depth), k)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict; with `strict`, a `UserError` says what is wrong with one that does not fit."""
        if strict:
            check_weights(self, state_dict)
        loaded = super().load_state_dict(state_dict, strict=strict, assign=assign)
        if strict:
            check_indices(self)
        return loaded

    def stored_parts(self) -> dict[str, Any]:
        """Return the `zoo` entry of a checkpoint: plain values only, for `torch.load(weights_only=True)`."""
        return {
            "format": FORMAT,
            "config": self.config_text,
            "backbone": self.backbone.self_contained(),
            "space": dict(vars(self.space)),
            "tokenizer": self.vocabulary.text if self.vocabulary else None,
            "max_length": self.vocabulary.max_length if self.vocabulary else None,
            "windows": self.vocabulary.windows if self.vocabulary else None,
            "calibration": self.calibration.stored() if self.calibration else None,
        }


class RankingModel(BackboneWithHead):
    """Ranks the labels of a batch of documents; needs no trainer.

    Args:
        space: facts of the corpus.
        backbone: encoder of documents.
        head: scores labels.
        depth: number of labels of a document that are ranked for metrics.
    """

    def __init__(self, space: LabelSpace, backbone: MakeBackbone, head: MakeHead, depth: int = 100) -> None:
        super().__init__(space, backbone, head, depth)
        self.threshold = 0.5
        self.origin: dict[str, Any] = {}  # entries of the checkpoint that say when it was written

    @property
    def device(self) -> torch.device:
        tensor = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Load the state dict of a `ZooModule`."""
        if not isinstance(weights, dict) or not isinstance(threshold := weights.get(THRESHOLDS[-1]), Tensor):
            raise UserError(f"the checkpoint has no weights, or no {THRESHOLDS[-1]}")
        self.load_state_dict({name: value for name, value in weights.items() if name not in THRESHOLDS})
        self.threshold = float(threshold)

    def weights(self) -> dict[str, Any]:
        """Return the state dict of the `ZooModule` with the same backbone and head."""
        threshold = torch.tensor(self.threshold, dtype=torch.float64)
        return self.state_dict() | {name: threshold.clone() for name in THRESHOLDS}


def share_backbone(head: Head, backbone: Backbone) -> None:
    """Give the encoder to all parts of a head that encode label texts with it."""
    for part in head.modules():
        if isinstance(part, LabelTextHead):
            part.share(backbone)


def check_indices(module: nn.Module) -> None:
    """Check the indices of all parts of a module."""
    for part in module.modules():
        if isinstance(part, Indexed):
            part.check_indices()


def check_pair(backbone: Backbone, head: Head) -> None:
    """Refuse a head that needs more than the backbone provides."""
    reader, encoder = type(head).__name__, type(backbone).__name__
    if head.needs_tokens and not backbone.has_tokens:
        raise UserError(f"{reader} reads token states and {encoder} has none: choose another `model.backbone`")
    if head.needs_layers > backbone.num_layers:
        raise UserError(
            f"{reader} reads {head.needs_layers} layers and {encoder} has {backbone.num_layers}: "
            "let it read fewer, or choose another `model.backbone`"
        )
