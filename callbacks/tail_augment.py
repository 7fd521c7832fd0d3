"""Augmentation of documents with tail labels, for any model (Taug)."""

from __future__ import annotations

from pytorch_lightning import Callback, LightningModule, Trainer

from callbacks.schedule import StageSchedule
from datamodules import TextDataModule
from datamodules.augment import Augmentation
from zoo.core.errors import MANY, UserError, check_range
from zoo.core.lightning_internals import callbacks_of, global_seed


class TailAugment(Callback):
    """Adds perturbed copies of the training documents with tail labels to one stage (Taug).

    Follows "Improving Tail Label Prediction for Extreme Multi-label Learning" (2020, section 3.3): words are swapped
    (in bags of words, their weights), then dropped. Metrics and label counts never include copies.

    Args:
        stage: stage that trains on the copies.
        copies: number of copies of each document; 0 disables augmentation.
        keep: probability that a word is kept; null keeps all.
        swap: fraction of the words that are swapped in pairs, at least one pair; null swaps none.
        fraction: fraction of the labels, the most frequent ones, that are head labels; all others are tail labels.
    """

    def __init__(
        self,
        stage: str = "tail",
        copies: int = 4,
        keep: float | None = 0.8,
        swap: float | None = 0.1,
        fraction: float = 0.1,
    ) -> None:
        check_range(0, MANY, **{"TailAugment.copies": copies})
        check_range(0, 1, **{"TailAugment.keep": keep, "TailAugment.swap": swap, "TailAugment.fraction": fraction})
        for name, value in (("keep", keep), ("swap", swap)):
            if value == 0:
                raise UserError(f"`TailAugment.{name}={value}` must be above 0; null disables it")
        self.stage, self.copies, self.keep, self.swap, self.fraction = stage, copies, keep, swap, fraction

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if (data := TextDataModule.of(trainer)) is None:
            raise UserError("TailAugment copies documents: it needs a `TextDataModule`")
        if self.keep is not None and data.settings.windows > 1:
            raise UserError(
                "TailAugment drops words, which shifts tokens from window to window: set `TailAugment.keep=null`, or "
                "`data.windows=1`"
            )
        names = [stage.name for schedule in callbacks_of(trainer, StageSchedule) for stage in schedule.stages]
        if self.stage not in names:
            raise UserError(f"TailAugment: no stage {self.stage!r}: the experiment has {', '.join(names)}")
        data.augmentation = Augmentation(self.stage, self.copies, self.keep, self.swap, self.fraction, global_seed())
