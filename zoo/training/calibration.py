"""Calibrated probabilities and thresholds of a trained model; `zoo calibrate` fits them to validation documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.base import Ranking
from heads.tail.platt import logits_of
from zoo.core.errors import WIDEST, UserError
from zoo.core.exporting import is_exporting
from zoo.core.metrics import FREQUENCY_CLASSES, frequency_class

Method = Literal["platt", "isotonic"]
Kind = Literal["global", "class", "label"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COEFFICIENTS = 4  # of the constant, the logit, the logarithm of the label count, and the product of both
NEAR = 1e-9  # distance of a score from 0 and 1 before the logit
MOST_STEPS = 1000  # of the isotonic function


@dataclass(frozen=True)
class Calibration:
    """Maps scores to probabilities by few parameters that all labels share, and has a threshold for each label.

    With the logit z of a score and c = ln(1 + number of training documents), the probability is
    sigmoid(w0 + w1 z + w2 c + w3 z c). The isotonic form replaces this sigmoid by a non-decreasing function, linear
    between `steps`. All fields are plain values, for checkpoints that open with `weights_only=True`.

    Attributes:
        method: `platt` or `isotonic`.
        weights: w0 to w3.
        candidates: number of best labels of a document that are calibrated, and then sorted again.
        kind: thresholds in use: one for all labels (`global`), for each frequency class, or for each label.
        target: what the thresholds were fitted for, such as `macro-f1`.
        cuts: thresholds of each kind: one, one per class of `FREQUENCY_CLASSES`, and one per label.
        counts: number of training documents of each label; stored with the label space.
        steps: arguments of the isotonic function, ascending, and its values; empty for `platt`.
    """

    method: Method
    weights: list[float]
    candidates: int
    kind: Kind
    target: str
    cuts: dict[str, list[float]]
    counts: list[int]
    steps: list[list[float]] = field(default_factory=lambda: [[], []])

    @property
    def thresholds(self) -> np.ndarray:
        """Threshold of each label, (num_labels,) float64."""
        return self.thresholds_of(self.kind)

    def thresholds_of(self, kind: Kind) -> np.ndarray:
        """Threshold of each label by one of the kinds; labels that were added later have that of their class."""
        if kind == "global":
            return np.full(len(self.counts), self.cuts["global"][0])
        by_class = np.array(self.cuts["class"])[frequency_class(np.array(self.counts))]
        if kind == "label":
            by_class[: len(self.cuts["label"])] = self.cuts["label"]
        return by_class

    def apply(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Probabilities of labels from their scores, of any shape; 0 where the label is -1."""
        counts = torch.tensor(self.counts, device=labels.device)[labels.clamp_min(0)]
        logits = design(scores, counts) @ torch.tensor(self.weights, dtype=torch.float64, device=scores.device)
        places, values = (np.array(part) for part in self.steps)
        if len(places) and is_exporting():
            found = interpolated(logits, *(torch.tensor(part, dtype=torch.float64) for part in self.steps))
        elif len(places):
            found = torch.from_numpy(np.interp(logits.cpu().numpy(), places, values)).to(scores.device)
        else:
            found = logits.sigmoid()
        return found.float().masked_fill(labels < 0, 0)

    def ranked(self, ranking: Ranking, k: int) -> Ranking:
        """The k labels with the highest probabilities; ties keep the order of the scores."""
        scores = self.apply(ranking.scores, ranking.labels)
        order = scores.masked_fill(ranking.labels < 0, -1).argsort(dim=1, descending=True, stable=True)[:, :k]
        return Ranking(scores.gather(1, order), ranking.labels.gather(1, order))

    def depth(self, k: int) -> int:
        """Number of labels to rank before calibration, for the k best afterwards."""
        return min(max(k, self.candidates), len(self.counts))

    def rank(self, rank: Callable[[int], Ranking], k: int) -> Ranking:
        """Calibrate what `rank` finds, which gets the number of labels that it must find."""
        return self.ranked(rank(self.depth(k)), k)

    def grown(self, space: LabelSpace) -> Calibration:
        """The same for a label space with more labels."""
        return Calibration(**{**vars(self), "counts": space.scored_counts})

    def stored(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {key: value for key, value in vars(self).items() if key != "counts"}

    @classmethod
    def of(cls, stored: Any, space: LabelSpace) -> Calibration | None:
        """Check what a checkpoint has stored; None if it is not calibrated."""
        if stored is None:
            return None
        names = {"method", "weights", "candidates", "kind", "target", "cuts", "steps"}
        if not isinstance(stored, Mapping) or stored.keys() != names:
            raise UserError("its calibration is damaged: it has not the fields of `Calibration`")
        cuts, steps, width = stored["cuts"], stored["steps"], stored["candidates"]
        sizes = {"global": 1, "class": len(FREQUENCY_CLASSES), "label": space.num_scored - space.added}
        wrong = {
            "method": stored["method"] not in get_args(Method),
            "kind": stored["kind"] not in KINDS,
            "target": not isinstance(stored["target"], str) or len(stored["target"]) > 100,
            "candidates": type(width) is not int or not 0 < width <= WIDEST,
            "weights": not are_numbers(stored["weights"], COEFFICIENTS),
            "cuts": not isinstance(cuts, Mapping)
            or cuts.keys() != sizes.keys()
            or not all(are_numbers(cuts[kind], size, 0, 1) for kind, size in sizes.items()),
            "steps": not are_steps(steps) or (stored["method"] == "isotonic") != bool(steps[0]),
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise UserError(f"its calibration is damaged: {', '.join(found)} out of range or of another length")
        return cls(**stored, counts=space.scored_counts)


def interpolated(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """`np.interp` as a graph."""
    if len(places) == 1:
        return values.expand_as(x)
    after = (x.unsqueeze(-1) >= places).sum(-1).clamp(1, len(places) - 1)
    start, low = places[after - 1], values[after - 1]
    share = ((x - start) / (places[after] - start)).clamp(0, 1)
    return low + share * (values[after] - low)


def design(scores: Tensor, counts: Tensor) -> Tensor:
    """What a probability is computed from: 1, logit, ln(1 + count), and the product of both, (..., 4) float64."""
    logits, sizes = logits_of(scores, NEAR), counts.double().log1p()
    return torch.stack([torch.ones_like(logits), logits, sizes, logits * sizes], -1)


def are_numbers(values: Any, size: int, low: float = -1e6, high: float = 1e6) -> bool:
    """Whether this is a list of `size` floats in [low, high]."""
    return (
        isinstance(values, list)
        and len(values) == size
        and all(type(value) is float and low <= value <= high for value in values)
    )


def are_steps(values: Any) -> bool:
    """Whether these are the arguments and values of a non-decreasing function with values in [0, 1]."""
    if not isinstance(values, list) or len(values) != 2 or not isinstance(values[0], list):
        return False
    size = len(values[0])
    if size > MOST_STEPS or not (are_numbers(values[0], size) and are_numbers(values[1], size, 0, 1)):
        return False
    return ascending(values[0], strict=True) and ascending(values[1])


def ascending(values: Sequence[float], strict: bool = False) -> bool:
    return all(a < b or (a == b and not strict) for a, b in pairwise(values))
