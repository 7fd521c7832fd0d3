"""Progress bars for stages and transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar

from zoo.core.console import progress_bar
from zoo.core.lightning_internals import DescribedProgressBar, is_progress_stopped
from zoo.training.module import ZooModule

T = TypeVar("T")


class StageProgressBar(DescribedProgressBar):
    """Shows the stage, its epoch, and only the losses of this stage."""

    def describe_epoch(self, current_epoch: int) -> str:
        module = self.trainer.lightning_module
        schedule = module.schedule if isinstance(module, ZooModule) else None
        if schedule is None or schedule.open_ended:
            return super().describe_epoch(current_epoch)
        return f"{schedule.stage.name} {current_epoch - schedule.first_epoch + 1}/{schedule.stage.epochs}"

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        assert isinstance(pl_module, ZooModule)
        own = f"train/{pl_module.stage.name}/"
        metrics = super().get_metrics(trainer, pl_module).items()
        shown = {name: value for name, value in metrics if name.startswith(own) or not name.startswith("train/")}
        return {name.removeprefix(own).removesuffix("_step"): v for name, v in shown.items() if "_epoch" not in name}


def track(trainer: Trainer, items: Iterable[T], title: str) -> Iterator[T]:
    """Yield items with a progress bar; it is a line of the trainer's progress bar if that is active."""
    bar = trainer.progress_bar_callback
    total = len(items) if isinstance(items, Sized) else None
    if not isinstance(bar, RichProgressBar) or bar.is_disabled:
        yield from items
    elif bar.progress is None or is_progress_stopped(bar):
        with progress_bar(title) as begin:
            advance = begin(total)
            for item in items:
                yield item
                advance(1)
    else:
        task = bar.progress.add_task(title, total=total)
        try:
            yield from bar.progress.track(items, total, task_id=task)
        finally:  # also if the caller stops early
            bar.progress.update(task, visible=False)
