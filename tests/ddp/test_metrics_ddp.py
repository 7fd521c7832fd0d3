"""Metrics of two processes, padded with a repeated document as a distributed sampler does, equal those of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from datamodules.batch import LabelSpace, Targets
from zoo.training.ranking_metrics import RankingMetrics

pytestmark = pytest.mark.ddp
DOCUMENTS, LABELS, UNSEEN, WIDTH = 37, 50, 5, 12


def space() -> LabelSpace:
    counts = [300 // (i + 1) for i in range(LABELS)]
    return LabelSpace([f"l{i}" for i in range(LABELS)], counts, 1000, 10, unseen=[f"u{i}" for i in range(UNSEEN)])


def update(metric: RankingMetrics, rows: list[int], counted: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(DOCUMENTS, WIDTH, generator=generator).sort(descending=True).values
    labels = torch.rand(DOCUMENTS, LABELS, generator=generator).argsort()[:, :WIDTH]
    truth = torch.rand(DOCUMENTS, LABELS + UNSEEN, generator=generator) < 0.1
    targets = Targets.from_lists([truth[row].nonzero().flatten().tolist() for row in rows])
    metric.update(scores[rows], labels[rows], targets, counted)


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows = [*range(rank, DOCUMENTS, 2)]
    counted = torch.ones(len(rows) + rank, dtype=torch.bool)
    if rank == 1:
        rows.append(0)
        counted[-1] = False
    metric = RankingMetrics(space())
    for part in (slice(7), slice(7, None)):
        update(metric, rows[part], counted[part])
    threshold = metric.best_threshold()
    torch.save((metric.compute(), threshold, metric.documents), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    single = RankingMetrics(space())
    update(single, [*range(DOCUMENTS)], torch.ones(DOCUMENTS, dtype=torch.bool))
    expected = single.compute()
    mp.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="fork")
    seen = 0
    for rank in range(2):
        results, threshold, documents = torch.load(tmp_path / f"{rank}.pt")
        assert results.keys() == expected.keys()
        torch.testing.assert_close(results, expected, rtol=0, atol=1e-12)
        assert threshold == single.best_threshold()
        seen += int(documents)
    assert seen == int(single.documents)  # states are local again after the collectives
