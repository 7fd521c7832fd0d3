"""Finished runs that `zoo ensemble` and `zoo blend` make one model of, and the run folder of the result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console

from callbacks.predictions import group_masks, kept_candidates, label_table, prediction_table
from callbacks.run_report import tables
from datamodules import Batch, Targets, TextDataModule
from datamodules.batch import LabelSpace
from heads import Ranking
from zoo.commands.output import print_summary
from zoo.commands.rerank import corpus_of, slices, take
from zoo.core.errors import UserError
from zoo.core.run_folder import CHECKPOINTS, RunFolder
from zoo.core.run_search import read_runs
from zoo.training.checkpoint import read_checkpoint
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.loggers import make_unique_folder
from zoo.training.rank_split import rank_split
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.ranking_model import RankingModel
from zoo.training.tagger import Tagger, tagger_of

SHARED_FACTS = ("data", "sample", "seed", "train_documents", "limit_train", "labels")


class Member(NamedTuple):
    """A finished run with its model and corpus."""

    run: RunFolder
    content: dict[str, Any]
    tagger: Tagger
    data: TextDataModule

    @property
    def space(self) -> LabelSpace:
        return self.tagger.module.space

    def rankings(self, split: str, depth: int) -> Ranking:
        """The best `depth` labels of all documents of a split, in corpus order."""
        depth = min(depth, self.space.num_labels)
        return rank_split(self.data, split, partial(rank, self.tagger.module, depth), depth)


def rank(module: RankingModel, depth: int, batch: Batch) -> Ranking:
    return module.rank(batch.to(module.device), depth)


def read_members(runs: Sequence[str], device: str | None, trust: Sequence[str]) -> list[Member]:
    """Load the models of finished runs, which must be on the same data."""
    found = read_runs(runs)
    if len(found) < 2:
        raise UserError(f"give at least two finished runs, not {len(found)}")
    if other := [run for run in found if run.data != found[0].data]:
        raise UserError(f"{other[0]} is on {other[0].data}, {found[0]} on {found[0].data}: give runs on the same data")
    members = []
    for run in found:
        file = run.path / CHECKPOINTS / "best.ckpt"
        content = read_checkpoint(file)
        tagger = tagger_of(content, file, device, trust)
        members.append(Member(run, content, tagger, corpus_of(tagger.module, str(file), trust)))
        if tagger.names != members[0].tagger.names:
            raise UserError(f"{run} has other labels than {found[0]}: train them on the same documents")
    return members


def check_name(name: str) -> None:
    if Path(name).name != name or name in ("", ".", ".."):
        raise UserError(f"`name={name}` is the name of a folder in `out`: no path")


def test_split(data: TextDataModule) -> str:
    return "test" if len(data.prepared.rows("test")) else "val"


def measured(space: LabelSpace, targets: Targets, ranking: Ranking, threshold: float) -> RankingMetrics:
    metrics = RankingMetrics(space)
    metrics.tuned_threshold.fill_(threshold)
    for rows in slices(len(targets)):
        part = take(ranking, rows)
        metrics.update(part.scores, part.labels, targets.take(rows))
    return metrics


def write_run(
    members: Sequence[Member], made: EnsembleTagger, ranking: Ranking, head: str, name: str, out: str, facts: Any = ()
) -> None:
    """Write the run folder of a combined model: its checkpoint, and what `compare` and `report` read.

    Args:
        members: the models that are combined.
        made: the combined model.
        ranking: its ranking of the test documents.
        head: name of the way of combining them.
        name: name of the run.
        out: folder of all runs.
        facts: further entries of `metrics.json`.
    """
    folder = RunFolder(make_unique_folder(Path(out) / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")))
    first = members[0]
    split = test_split(first.data)
    targets, runs = first.data.targets(split), [member.run for member in members]
    metrics = measured(first.space, targets, ranking, made.threshold)
    values = {key: float(value) for key, value in metrics.compute().items()} | {"threshold": made.threshold}
    every: dict[str, Any] = {
        **{key: runs[0].facts.get(key) for key in SHARED_FACTS},
        "experiment": name,
        "backbone": " + ".join(dict.fromkeys(str(run.facts.get("backbone")) for run in runs)),
        "head": head,
        "split": split,
        "seconds": total(runs, "seconds"),
        "parameters": total(runs, "parameters"),
        "members": [str(run.path) for run in runs],
        **dict(facts),
    }
    blocks = slices(len(targets))
    groups = group_masks(first.space)
    kept = [kept_candidates(take(ranking, rows), targets.take(rows), rows, made.threshold, groups) for rows in blocks]
    folder.write_config(yaml.safe_dump({"name": name, "members": every["members"]}))
    ids = list(first.data.prepared.rows(split).ids())
    folder.write_predictions(prediction_table(kept, ids), label_table(first.space))
    checkpoint = folder.path / CHECKPOINTS / "best.ckpt"
    checkpoint.parent.mkdir()
    made.save(checkpoint)
    folder.write_results(every, values)  # last: a run without them is unfinished
    Console().print(tables(f"{name} on {runs[0].corpus}: {'validation' if split == 'val' else split}", values))
    print_summary(models=str(len(members)), folder=str(folder.path), checkpoint=str(checkpoint))


def total(runs: Sequence[RunFolder], column: str) -> float | None:
    """Sum of a cost over the runs; None if one does not have it."""
    values = [run.value(column) for run in runs]
    return None if None in values else sum(value for value in values if value is not None)
