"""The progress bar, which knows about stages."""

from __future__ import annotations

from collections.abc import Iterator

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar
from torch.utils.data import DataLoader

from datamodules import Batch
from datamodules.progress import progress_bar


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


def tracked(trainer: Trainer, loader: DataLoader[Batch], title: str) -> Iterator[Batch]:
    """Batches with a progress bar: a line of the trainer's own where that is showing one."""
    bar = trainer.progress_bar_callback
    if not isinstance(bar, RichProgressBar) or bar.is_disabled:
        yield from loader
    elif bar.progress is None or bar._progress_stopped:
        with progress_bar(title) as begin:
            advance = begin(len(loader))
            for batch in loader:
                yield batch
                advance(1)
    else:
        task = bar.progress.add_task(title, total=len(loader))
        yield from bar.progress.track(loader, len(loader), task_id=task)
        bar.progress.update(task, visible=False)
