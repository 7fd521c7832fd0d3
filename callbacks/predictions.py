"""What a run found in each document, kept in its folder for whoever compares or looks closer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytorch_lightning as pl
import torch

from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace
from datamodules.files import written_whole
from datamodules.rows import Lists

KEPT = 5  # candidates of a document that are kept whatever they score: metrics look no further
FIXED = 0.5  # threshold of the metrics that are not tuned
DOCUMENTS, LABELS = "predictions.parquet", "labels.parquet"
Part = tuple[np.ndarray, ...]  # rows; sizes and values of truth; sizes, labels and scores of candidates


class KeepPredictions(pl.Callback):
    """Writes two tables into the run folder when the final test ends.

    `predictions.parquet` has a row for each document: its place and id in the corpus, its true labels, the best five
    candidates and all others that a threshold would choose, with their scores. `labels.parquet` says what the numbers
    of labels mean.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: list[Part] = []

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        ranking, counted = outputs["ranking"], batch.rows >= 0
        labels, scores = ranking.labels, ranking.scores
        chosen = scores >= min(FIXED, float(pl_module.threshold))  # type: ignore[arg-type]
        chosen[:, :KEPT] = True
        chosen &= (labels >= 0) & counted[:, None]
        truth = counted[batch.targets.rows]
        part = (
            batch.rows[counted],
            batch.targets.counts[counted],
            batch.targets.indices[truth],
            chosen.sum(1)[counted],
            labels[chosen],
            scores[chosen].float(),
        )
        self.parts.append(tuple(tensor.cpu().numpy() for tensor in part))

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        if trainer.state.fn == "validate":  # a corpus without test documents ends so; not the validation within fit
            self.on_test_batch_end(trainer, pl_module, outputs, *args, **kwargs)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(trainer, pl_module, "test")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._write(trainer, pl_module, "val")

    def _write(self, trainer: pl.Trainer, module: pl.LightningModule, split: str) -> None:
        parts, self.parts = self._of_all_processes(trainer), []
        if not trainer.is_global_zero or not parts:
            return
        data, space = trainer.datamodule, module.space  # type: ignore[attr-defined]
        assert isinstance(space, LabelSpace)
        ids = list(data.prepared.rows(split).ids()) if isinstance(data, TextDataModule) else None
        for name, table in ((DOCUMENTS, documents(parts, ids)), (LABELS, labels(space))):
            with written_whole(self.folder / name) as aside:
                pq.write_table(table, aside, compression="zstd")

    def _of_all_processes(self, trainer: pl.Trainer) -> list[Part]:
        if trainer.world_size == 1:
            return self.parts
        gathered: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(gathered, self.parts)
        return [part for parts in gathered for part in parts]


def documents(parts: list[Part], ids: list[str] | None) -> pa.Table:
    """One row for each document, in corpus order."""
    rows, truth_sizes, truth, sizes, found, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    columns = {
        "row": pa.array(rows[order]),
        "id": pa.array([ids[row] for row in rows[order]] if ids else [str(row) for row in rows[order]]),
        "truth": reordered(truth_sizes, truth.astype(np.int32), order),
        "labels": reordered(sizes, found.astype(np.int32), order),
        "scores": reordered(sizes, scores, order),
    }
    return pa.table(columns)


def reordered(sizes: np.ndarray, values: np.ndarray, order: np.ndarray) -> pa.ListArray:
    return Lists.of_sizes(sizes, values).column().take(pa.array(order))


def labels(space: LabelSpace) -> pa.Table:
    """Names of labels by number, with what the metrics weigh and group them by; those unseen in training are last."""
    unseen = len(space.unseen)
    return pa.table(
        {
            "label": pa.array([*space.names, *space.unseen]),
            "text": pa.array([*(space.texts or [""] * space.num_labels), *[""] * unseen]),
            "documents": pa.array([*space.counts, *[0] * unseen]),
            "weight": pa.array(space.inverse_propensity().numpy()),
            "known": pa.array([True] * space.num_labels + [False] * unseen),
        }
    )
