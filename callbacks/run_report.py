"""Final results of a run: on the console, in `metrics.json` and in W&B."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from torch import nn

from callbacks.schedule import StageSchedule
from callbacks.transition import gather_objects
from datamodules.base import TextDataModule
from heads import Blend, LinearEngine
from zoo.analysis.collect_evidence import collect
from zoo.core.console import note, print_result
from zoo.core.errors import first_line
from zoo.core.lightning_internals import callbacks_of, is_fast_dev_run
from zoo.core.metrics import (
    GROUP_TITLES,
    HEADLINE_METRICS,
    HIERARCHICAL_METRICS,
    KS,
    LABEL_METRICS,
    MACRO_K,
    RANKING_METRICS,
    THRESHOLD,
    percent,
)
from zoo.core.run_folder import RunFolder
from zoo.training.calibration import KINDS
from zoo.training.ranking_model import BackboneWithHead

COMMON = {*RANKING_METRICS, *HIERARCHICAL_METRICS, "microF1", "macroF1", "threshold"}  # others belong to one head


class RunReport(pl.Callback):
    """Prints the final tables, and writes the metrics to `metrics.json` and W&B.

    Args:
        title: title of the tables.
        facts: further entries of `metrics.json`, such as the name of the corpus.
        folder: run folder; without one nothing is written.
    """

    def __init__(self, title: str, facts: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
        self.title, self.facts, self.folder = title, dict(facts or {}), folder
        self.seconds = 0.0  # of training, including those before a resume
        self.memory: dict[str, float] = {}  # peak in MB, including that before a resume
        self.started: float | None = None
        self.has_fitted = False

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds_so_far(), "memory": max_by_key(self.memory, peak_memory())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.has_fitted:  # the test after a fit loads the best checkpoint
            self.seconds = float(state_dict.get("seconds", 0.0))
            self.memory = {name: float(value) for name, value in state_dict.get("memory", {}).items()}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.monotonic()
        for run in wandb_runs(trainer):
            import wandb

            assert isinstance(pl_module, BackboneWithHead)
            counts = pl_module.space.counts
            bins = 2.0 ** np.arange(max(counts).bit_length() + 1)  # logarithmic, for the long tail
            run.log({"data/label_frequency": wandb.Histogram(np_histogram=np.histogram(counts, bins))})

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
        memory = max_by_key(*gather_objects(trainer, max_by_key(self.memory, peak_memory())))
        if not trainer.is_global_zero:
            return
        data = TextDataModule.of(trainer)
        prefix = f"{split}/"
        values = trainer.callback_metrics.items()
        metrics = {name.removeprefix(prefix): float(v) for name, v in values if name.startswith(prefix)}
        title = f"{self.title}: {'validation' if split == 'val' else split}"
        reasons = partial_reasons(trainer, self.has_fitted)
        facts = self.facts | {
            "split": split,
            "seconds": round(self.seconds, 1),
            "epochs": trainer.current_epoch,
            "peak_memory_mb": memory,
            "parameters": count_parameters(module),
            "vector_coverage": None if data is None else data.vector_coverage,
            "partial": reasons,
        }
        if importances := find_importances(module):
            facts["importances"] = importances
        if self.folder is not None:
            RunFolder(self.folder).write_results(facts, metrics)
        print_result(tables(title, metrics))
        if reasons:
            print_result(f"[bold yellow]partial run, not a result:[/] {', '.join(reasons)}")
        for run in wandb_runs(trainer):
            import wandb

            rows = [[name, value] for name, value in metrics.items()]
            run.log({"results": wandb.Table(columns=["metric", title], data=rows)})
            run.summary.update(facts)
            run.config.update({"partial": reasons}, allow_val_change=True)
        if self.folder is not None:
            self._write_pictures(RunFolder.read(self.folder), trainer, module, split)

    def _write_pictures(self, folder: RunFolder, trainer: pl.Trainer, module: pl.LightningModule, split: str) -> None:
        """Save the data of the report's pictures, and send the pictures to W&B."""
        try:
            if (data := TextDataModule.of(trainer)) is not None:
                collect(module, data, folder, split).save(folder)
            if runs := wandb_runs(trainer):
                import wandb

                from zoo.analysis.evidence import Evidence
                from zoo.analysis.pictures import of_run

                images = {
                    f"pictures/{name}": wandb.Image(figure)
                    for name, figure in of_run(folder, Evidence.load(folder)).items()
                }
                for run in runs:
                    run.log(images)
        except Exception as error:  # pictures must not end a run whose results are complete
            note(f"no pictures of this run: {first_line(error)}")


def partial_reasons(trainer: pl.Trainer, has_fitted: bool) -> list[str]:
    """List why metrics are not the result of a whole run; empty if they are."""
    if is_fast_dev_run(trainer):
        return ["fast_dev_run"]
    reasons = []
    if has_fitted and not trainer.global_step and not any(s.transformed for s in callbacks_of(trainer, StageSchedule)):
        reasons.append("never trained")
    for split in ("train", "val", "test"):
        name = f"limit_{split}_batches"
        limit = getattr(trainer, name)
        if isinstance(limit, int) or limit < 1:  # 1.0 is everything, 1 is one batch
            reasons.append(f"{name}={limit:g}")
    return reasons


def tables(title: str, metrics: Mapping[str, float]) -> Group:
    """Format metrics in %: of rankings, macro averages by label frequency, of the head's parts, and its own."""
    ranking = Table("in %", *(f"@{k}" for k in KS))
    for name in (*RANKING_METRICS, *(name for name in HIERARCHICAL_METRICS if f"{name}@{KS[0]}" in metrics)):
        ranking.add_row(name, *(percent(metrics[f"{name}@{k}"]) for k in KS))
    labels = Table("labels by training documents", "measured", *(f"macro {name}@{MACRO_K}" for name in LABEL_METRICS))
    for group, group_title in GROUP_TITLES.items():
        values = (percent(metrics[f"macro{name}@{MACRO_K}/{group}"]) for name in LABEL_METRICS)
        labels.add_row(group_title, f"{metrics[f'labels/{group}']:,.0f}", *values)
    parts = Table("part", *HEADLINE_METRICS)
    for part in [name.removesuffix("/P@1") for name in metrics if name.endswith("/P@1")]:
        parts.add_row(part, *(percent(metrics[f"{part}/{name}"]) for name in HEADLINE_METRICS))
    for table in (ranking, labels, parts):
        for column in table.columns[1:]:
            column.justify = "right"
    fixed = f"{THRESHOLD:g}"
    f1 = {at: [percent(metrics[f"{kind}F1@{at}"]) for kind in ("micro", "macro")] for at in (fixed, "tuned")}
    line = "micro-F1 {} and macro-F1 {} at {}"
    calibrated = {
        kind: [percent(metrics[f"{mean}F1@{kind}"]) for mean in ("micro", "macro")]
        for kind in KINDS
        if f"microF1@{kind}" in metrics
    }
    own = [name for name in metrics if "/" not in name and name.partition("@")[0] not in COMMON]
    return Group(
        f"\n[bold]{escape(title)}[/]",
        ranking,
        labels,
        *([parts] if parts.rows else []),
        *([", ".join(f"{name} {percent(metrics[name])}" for name in own)] if own else []),
        line.format(*f1[fixed], fixed),
        line.format(*f1["tuned"], f"{metrics['threshold']:.3f}, the threshold tuned on validation"),
        *(line.format(*values, f"calibrated thresholds: {kind}") for kind, values in calibrated.items()),
    )


def count_parameters(module: nn.Module) -> int | None:
    """Count parameters, including the weights of linear engines; None if an engine does not know its size."""
    total = sum(p.numel() for p in module.parameters())
    for engine in module.modules():
        if isinstance(engine, LinearEngine):
            if engine.num_weights is None:
                return None
            total += engine.num_weights
    return total


def find_importances(module: nn.Module) -> dict[str, float]:
    """Importances of the features of a fitted `Blend` in the model."""
    blends = (part for part in module.modules() if isinstance(part, Blend) and part.trees.fitted)
    return next((blend.importances() for blend in blends), {})


def peak_memory() -> dict[str, float]:
    """Peak memory in MB: `host` of this process or its largest child, `gpu` as allocated by torch."""
    found = {}
    if sys.platform != "win32":  # `resource` is POSIX only
        import resource

        largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        found["host"] = largest / (2**20 if sys.platform == "darwin" else 2**10)
    if torch.cuda.is_available() and (allocated := torch.cuda.max_memory_allocated()):
        found["gpu"] = allocated / 2**20
    return {device: round(value, 1) for device, value in found.items()}


def max_by_key(*values: Mapping[str, float]) -> dict[str, float]:
    return {key: max(value.get(key, 0.0) for value in values) for key in chain.from_iterable(values)}


def wandb_runs(trainer: pl.Trainer) -> list[Any]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]
