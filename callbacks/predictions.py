"""Predictions of the final test, for reports and significance tests."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytorch_lightning as pl
import torch
from torch import Tensor

from callbacks.transition import gather_objects
from datamodules import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from heads import Ranking
from zoo.core.metrics import GROUPS, MACRO_K, THRESHOLD, label_groups
from zoo.core.ragged import Lists
from zoo.core.run_folder import RunFolder
from zoo.training.module import ZooModule

BatchArrays = tuple[np.ndarray, ...]  # rows; sizes and values of truth; sizes, labels and scores of candidates


class KeepPredictions(pl.Callback):
    """Writes the predictions of the final test to the run folder.

    `predictions.parquet` has a row for each document: its row and id in the corpus, its true labels, its best five
    candidates among all labels and in each label group, and all others above the lower threshold, with scores.
    `labels.parquet` describes the label indices.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches: list[BatchArrays] = []

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, ZooModule)
        ranking: Ranking = outputs["ranking"]
        groups = group_masks(pl_module.space).to(ranking.labels.device)
        kept = kept_candidates(ranking, batch.targets, batch.rows, pl_module.threshold, groups)
        self.batches.append(kept)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        if trainer.state.fn == "validate":  # the final evaluation of a corpus without test documents
            self.on_test_batch_end(trainer, pl_module, outputs, *args, **kwargs)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(trainer, pl_module, "test")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._write(trainer, pl_module, "val")

    def _write(self, trainer: pl.Trainer, module: pl.LightningModule, split: str) -> None:
        batches, self.batches = list(chain.from_iterable(gather_objects(trainer, self.batches))), []
        if not trainer.is_global_zero or not batches:
            return
        assert isinstance(module, ZooModule)
        data, space = TextDataModule.of(trainer), module.space
        ids = list(data.prepared.rows(split).ids()) if data is not None else None
        RunFolder(self.folder).write_predictions(prediction_table(batches, ids), label_table(space))


def group_masks(space: LabelSpace) -> Tensor:
    """Labels of each group that metrics are reported for, (groups, labels)."""
    groups = label_groups(np.array([*space.counts, *(0 for _ in space.unseen)]))
    return torch.from_numpy(np.stack([groups[name] for name in GROUPS]))


def kept_candidates(ranking: Ranking, targets: Targets, rows: Tensor, threshold: float, groups: Tensor) -> BatchArrays:
    """Select what is kept of a batch; repeated documents have row -1."""
    counted, labels, scores = rows >= 0, ranking.labels, ranking.scores
    chosen = scores >= min(THRESHOLD, threshold)
    chosen[:, :MACRO_K] = True
    for members in groups:
        member = members[labels.clamp_min(0)] & (labels >= 0)
        chosen |= member & (member.cumsum(1) <= MACRO_K)
    chosen &= (labels >= 0) & counted[:, None]
    tensors = (
        rows[counted],
        targets.counts[counted],
        targets.indices[counted[targets.rows]],
        chosen.sum(1)[counted],
        labels[chosen],
        scores[chosen].float(),
    )
    return tuple(tensor.cpu().numpy() for tensor in tensors)


def prediction_table(batches: list[BatchArrays], ids: list[str] | None) -> pa.Table:
    """Make a table with a row for each document, in corpus order."""
    rows, truth_sizes, truth, sizes, found, scores = (np.concatenate(column) for column in zip(*batches, strict=True))
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


def label_table(space: LabelSpace) -> pa.Table:
    """Make a table with a row for each label index; labels without training documents come last."""
    unseen = len(space.unseen)
    return pa.table(
        {
            "label": pa.array(space.labels),
            "text": pa.array([*(space.texts or [""] * space.num_labels), *(space.unseen_texts or [""] * unseen)]),
            "documents": pa.array([*space.counts, *[0] * unseen]),
            "weight": pa.array(space.inverse_propensity().numpy()),
            "known": pa.array([True] * space.num_scored + [False] * (space.num_all - space.num_scored)),
        }
    )
