"""What a run ends in: one table, `metrics.json`, and the same in W&B."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from torch import nn

from callbacks.evidence import collect
from datamodules.base import TextDataModule
from datamodules.batch import LabelSpace
from datamodules.errors import first_line
from datamodules.files import written_whole
from datamodules.progress import note
from heads import LinearEngine

KS = (1, 3, 5)
RANKING = ("P", "nDCG", "PSP", "PSnDCG", "R", "RP")
COMMON = {*RANKING, "microF1", "macroF1", "threshold"}
SHOWN_OF_PARTS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
RANGES = {
    "oneshot": "a single one",
    "rare": "one to 3",
    "few": "few, up to 20",
    "medium": "medium, 21 to 100",
    "many": "many, over 100",
    "all": "all",
}


class RunReport(pl.Callback):
    """Prints the final table, and keeps it with the run's facts in `metrics.json` and in W&B.

    Args:
        title: heads every table.
        facts: what else belongs beside the numbers, such as the name of the corpus.
        folder: where `metrics.json` goes; nowhere if not given.
    """

    def __init__(self, title: str, facts: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
        self.title, self.facts, self.folder = title, dict(facts or {}), folder
        self.seconds = 0.0  # of training, in all parts of a continued run
        self.memory: dict[str, float] = {}  # MB at most, likewise
        self.started: float | None = None
        self.has_fitted = False

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds_so_far(), "memory": highest(self.memory, peak_memory())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.has_fitted:  # the test after a fit loads the best checkpoint, whose seconds are among ours
            self.seconds = float(state_dict.get("seconds", 0.0))
            self.memory = dict(state_dict.get("memory", {}))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.monotonic()
        space = pl_module.space
        assert isinstance(space, LabelSpace)
        for run in wandb_runs(trainer):
            import wandb

            bins = 2.0 ** np.arange(max(space.counts).bit_length() + 1)  # a long tail needs a logarithmic axis
            run.log({"data/label_frequency": wandb.Histogram(np_histogram=np.histogram(space.counts, bins))})

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds, self.started, self.has_fitted = self._seconds_so_far(), None, True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "validate":  # not the validation within fit
            self._report(trainer, pl_module, "val")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._report(trainer, pl_module, "test")

    def _seconds_so_far(self) -> float:
        return self.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    def _report(self, trainer: pl.Trainer, module: pl.LightningModule, split: str) -> None:
        memory = highest_of_all_processes(trainer, highest(self.memory, peak_memory()))
        if not trainer.is_global_zero:
            return
        prefix = f"{split}/"
        values = trainer.callback_metrics.items()
        metrics = {name.removeprefix(prefix): float(v) for name, v in values if name.startswith(prefix)}
        title = f"{self.title}: {'validation' if split == 'val' else split}"
        facts = self.facts | {
            "split": split,
            "seconds": round(self.seconds, 1),
            "epochs": trainer.current_epoch,
            "peak_memory_mb": memory,
            "parameters": count_parameters(module),
            "vector_coverage": getattr(trainer.datamodule, "vector_coverage", None),  # type: ignore[attr-defined]
        }
        if self.folder is not None:
            with written_whole(self.folder / "metrics.json") as aside:
                aside.write_text(json.dumps(facts | {"metrics": metrics}, indent=2) + "\n", "utf8")
        Console().print(tables(title, metrics))
        for run in wandb_runs(trainer):
            import wandb

            rows = [[name, value] for name, value in metrics.items()]
            run.log({"results": wandb.Table(columns=["metric", title], data=rows)})
            run.summary.update(facts)
        if self.folder is not None:
            self._show(trainer, module, split)

    def _show(self, trainer: pl.Trainer, module: pl.LightningModule, split: str) -> None:
        """Keep what a report shows of the model, and send its pictures to W&B."""
        data, folder = trainer.datamodule, self.folder  # type: ignore[attr-defined]
        assert folder is not None
        try:
            if isinstance(data, TextDataModule):
                collect(module, data, folder, split).save(folder)
            if runs := wandb_runs(trainer):
                import wandb

                from callbacks.pictures import of_run

                images = {f"pictures/{name}": wandb.Image(figure) for name, figure in of_run(folder).items()}
                for run in runs:
                    run.log(images)
        except Exception as error:  # the results are there: a run of hours must not die of its pictures
            note(f"the pictures of this run are left out: {first_line(error)}")


def tables(title: str, metrics: Mapping[str, float]) -> Group:
    """Ranking metrics, those averaged over labels by training documents, of the head's parts, and its own; in %."""
    ranking = Table("in %", *(f"@{k}" for k in KS))
    for name in RANKING:
        ranking.add_row(name, *(percent(metrics[f"{name}@{k}"]) for k in KS))
    labels = Table("labels by training documents", "measured", "macro P@5", "macro R@5", "macro F@5")
    for group in RANGES:
        values = (percent(metrics[f"macro{name}@5/{group}"]) for name in "PRF")
        labels.add_row(RANGES[group], f"{metrics[f'labels/{group}']:,.0f}", *values)
    parts = Table("part", *SHOWN_OF_PARTS)
    for part in [name.removesuffix("/P@1") for name in metrics if name.endswith("/P@1")]:
        parts.add_row(part, *(percent(metrics[f"{part}/{name}"]) for name in SHOWN_OF_PARTS))
    for table in (ranking, labels, parts):
        for column in table.columns[1:]:
            column.justify = "right"
    f1 = {at: [percent(metrics[f"{kind}F1@{at}"]) for kind in ("micro", "macro")] for at in ("0.5", "tuned")}
    line = "micro-F1 {} and macro-F1 {} at {}"
    own = [name for name in metrics if "/" not in name and name.partition("@")[0] not in COMMON]  # the head's
    return Group(
        f"\n[bold]{escape(title)}[/]",
        ranking,
        labels,
        *([parts] if parts.rows else []),
        *([", ".join(f"{name} {percent(metrics[name])}" for name in own)] if own else []),
        line.format(*f1["0.5"], "0.5"),
        line.format(*f1["tuned"], f"{metrics['threshold']:.3f}, the threshold tuned on validation"),
    )


def count_parameters(module: nn.Module) -> int | None:
    """With the weights of linear models, which torch does not count; None where nobody knows how many they are."""
    engines = [part.num_weights for part in module.modules() if isinstance(part, LinearEngine)]
    if None in engines:
        return None
    return sum(p.numel() for p in module.parameters()) + sum(size for size in engines if size is not None)


def peak_memory() -> dict[str, float]:
    """MB that this process, or the largest that it has started, had in memory at most; `gpu` is what torch held."""
    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found = {"host": largest / (2**20 if sys.platform == "darwin" else 2**10)}
    if torch.cuda.is_available() and (held := torch.cuda.max_memory_allocated()):
        found["gpu"] = held / 2**20
    return {place: round(value, 1) for place, value in found.items()}


def highest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {place: max(one.get(place, 0.0), other.get(place, 0.0)) for place in {**one, **other}}


def highest_of_all_processes(trainer: pl.Trainer, memory: dict[str, float]) -> dict[str, float]:
    if trainer.world_size > 1:
        every: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(every, memory)
        for other in every:
            memory = highest(memory, other)
    return memory


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def wandb_runs(trainer: pl.Trainer) -> list[Any]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]
