"""The progress bar, which knows about stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar

from datamodules.progress import progress_bar

T = TypeVar("T")


class StageProgressBar(RichProgressBar):
    """Shows the stage, the epoch within it, and its own losses only."""

    def _get_train_description(self, current_epoch: int) -> str:
        schedule = next((c for c in self.trainer.callbacks if hasattr(c, "first_epoch")), None)  # type: ignore[attr-defined]
        if schedule is None or schedule.open_ended:
            return super()._get_train_description(current_epoch)
        return f"{schedule.stage.name} {current_epoch - schedule.first_epoch + 1}/{schedule.stage.epochs}"

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        own = f"train/{pl_module.stage.name}/"  # type: ignore[union-attr]
        metrics = super().get_metrics(trainer, pl_module).items()
        shown = {name: value for name, value in metrics if name.startswith(own) or not name.startswith("train/")}
        return {name.removeprefix(own).removesuffix("_step"): v for name, v in shown.items() if "_epoch" not in name}


def tracked(trainer: Trainer, items: Iterable[T], title: str) -> Iterator[T]:
    """Items with a progress bar: a line of the trainer's own where that is showing one."""
    bar = trainer.progress_bar_callback
    total = len(items) if isinstance(items, Sized) else None
    if not isinstance(bar, RichProgressBar) or bar.is_disabled:
        yield from items
    elif bar.progress is None or bar._progress_stopped:
        with progress_bar(title) as begin:
            advance = begin(total)
            for item in items:
                yield item
                advance(1)
    else:
        task = bar.progress.add_task(title, total=total)
        try:
            yield from bar.progress.track(items, total, task_id=task)
        finally:  # also where the loop is left early
            bar.progress.update(task, visible=False)
