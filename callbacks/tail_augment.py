"""Copies of documents with rare labels, for any model."""

from __future__ import annotations

import os

from pytorch_lightning import Callback, LightningModule, Trainer

from callbacks.schedule import StageSchedule
from datamodules import TextDataModule
from datamodules.augment import Augmentation
from datamodules.errors import UserError


class TailAugment(Callback):
    """In one stage every training document that has a tail label comes with copies that differ a little (Taug).

    After "Improving Tail Label Prediction for Extreme Multi-label Learning" (2020, section 3.3). Words change places,
    or their weights do where documents are bags of them; then words are left out. Whatever measures or counts
    documents never sees copies.

    Args:
        stage: whose documents come with copies.
        copies: of each of them; 0 leaves the model as it is.
        keep: probability that a word stays; null leaves none out.
        swap: share of the words that change places in pairs, at least one pair; null exchanges none.
        fraction: of the labels are head, the most frequent ones; all others are tail.
    """

    def __init__(
        self,
        stage: str = "tail",
        copies: int = 4,
        keep: float | None = 0.8,
        swap: float | None = 0.1,
        fraction: float = 0.1,
    ) -> None:
        if copies < 0:
            raise UserError(f"TailAugment: copies={copies} cannot be negative; 0 makes none")
        for name, value in (("keep", keep), ("swap", swap)):
            if value is not None and not 0 < value <= 1:
                raise UserError(f"TailAugment: {name}={value} is not above 0 and at most 1; null leaves it out")
        if not 0 <= fraction <= 1:
            raise UserError(f"TailAugment: fraction={fraction} is not between 0 and 1")
        self.stage, self.copies, self.keep, self.swap, self.fraction = stage, copies, keep, swap, fraction

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, TextDataModule):
            raise UserError("TailAugment copies documents: that needs a datamodule of the zoo")
        schedules = [c for c in trainer.callbacks if isinstance(c, StageSchedule)]  # type: ignore[attr-defined]
        names = [stage.name for schedule in schedules for stage in schedule.stages]
        if self.stage not in names:
            raise UserError(f"TailAugment: there is no stage {self.stage!r}: the experiment has {', '.join(names)}")
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        data.augmentation = Augmentation(self.stage, self.copies, self.keep, self.swap, self.fraction, seed)
