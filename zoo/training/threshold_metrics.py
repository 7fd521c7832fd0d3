"""F1 by the thresholds of a calibration."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.batch import Targets
from heads.tail.rankings import relevant
from zoo.core.metrics import f1
from zoo.training.calibration import KINDS, Calibration
from zoo.training.ranking_metrics import select, tally


class ThresholdMetrics(Metric):
    """`microF1@global`, `macroF1@class`, ...: F1 of the labels that reach each kind of threshold of a calibration.

    Means over documents and labels are those of `RankingMetrics`: macro-F1 is over the labels that a document has, and
    documents without labels are ignored.

    Args:
        calibration: the calibration.
        num_all: number of known and unseen labels.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    support: Tensor  # (num_all,) documents that have each label
    predicted: Tensor  # (KINDS, num_all)
    hits: Tensor  # (KINDS, num_all)
    thresholds: Tensor  # (KINDS, num_labels) float64

    def __init__(self, calibration: Calibration, num_all: int) -> None:
        super().__init__()
        cuts = [torch.from_numpy(calibration.thresholds_of(kind)) for kind in KINDS]
        self.num_all = num_all
        self.register_buffer("thresholds", torch.stack(cuts), persistent=False)
        for name, shape in (
            ("support", (num_all,)),
            ("predicted", (len(KINDS), num_all)),
            ("hits", (len(KINDS), num_all)),
        ):
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def update_called(self) -> bool:
        """Always True: a process without documents contributes zeros and should not warn."""
        return True

    def update(self, scores: Tensor, labels: Tensor, targets: Targets, counted: Tensor) -> None:
        """Add ranked candidates (batch, K); `counted` (batch,) is False for repeated documents."""
        kept = (targets.counts > 0) & counted
        scores, labels, targets = scores[kept], labels[kept].long(), select(targets, kept)
        known = labels >= 0
        hits, scores, labels = relevant(labels, targets)[known], scores[known].double(), labels[known]
        chosen = scores >= self.thresholds[:, labels]  # (KINDS, candidates)
        cells = torch.arange(len(KINDS), device=labels.device)[:, None] * self.num_all + labels
        tally(self.support, targets.indices)
        tally(self.predicted, cells[chosen])
        tally(self.hits, cells[chosen & hits])

    def compute(self) -> dict[str, Tensor]:
        """Micro and macro F1 by kind of threshold."""
        support = self.support.double().cpu().numpy()
        found = {}
        for kind, hits, predicted in zip(KINDS, self.hits, self.predicted, strict=True):
            counts = hits.double().cpu().numpy(), predicted.double().cpu().numpy(), support
            found[f"microF1@{kind}"] = f1(*(count.sum() for count in counts))
            found[f"macroF1@{kind}"] = f1(*counts).sum() / max((support > 0).sum(), 1)
        return {name: torch.tensor(float(value), device=self.support.device) for name, value in found.items()}
