"""`zoo ensemble`: the mean of the probabilities of several models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from callbacks.predictions import kept_candidates, label_table, prediction_table
from callbacks.run_report import tables
from datamodules import Batch, Targets, TextDataModule
from heads import Ranking
from zoo.commands.output import print_summary
from zoo.commands.rerank import corpus_of, slices, take
from zoo.core.errors import UserError
from zoo.core.run_folder import CHECKPOINTS, RunFolder, read_runs
from zoo.training.checkpoint import read_checkpoint
from zoo.training.ensemble_tagger import DEPTH, EnsembleTagger, mean_ranking
from zoo.training.loggers import make_unique_folder
from zoo.training.rank_split import rank_split
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.ranking_model import RankingModel
from zoo.training.tagger import Tagger, tagger_of

SHARED_FACTS = ("data", "sample", "seed", "train_documents", "limit_train", "labels")


def ensemble(
    runs: list[str],
    *,
    name: str = "ensemble",
    out: str = "runs",
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Average the probabilities of finished runs, and test the result.

    The runs must have the same training documents; backbones, heads and vocabularies may differ. A label that is not
    among the best 100 of a model counts as 0 there.

    Args:
        runs: run folders, or folders that contain them.
        name: name of the new run.
        out: folder of all runs. The new run has metrics and predictions for `compare` and `report`, and a checkpoint
            for `predict`.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that a checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo ensemble runs/lightxml_bert runs/lightxml_roberta --name lightxml
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise UserError(f"`name={name}` is the name of a folder in `out`: no path")
    found = read_runs(runs)
    if len(found) < 2:
        raise UserError(f"an ensemble needs at least two finished runs, not {len(found)}")
    if other := [run for run in found if run.data != found[0].data]:
        raise UserError(f"{other[0]} is on {other[0].data}, {found[0]} on {found[0].data}: give runs on the same data")
    files = [run.path / CHECKPOINTS / "best.ckpt" for run in found]
    contents = [read_checkpoint(file) for file in files]
    taggers = [tagger_of(content, file, device, trust or ()) for content, file in zip(contents, files, strict=True)]
    made = EnsembleTagger(taggers, contents)
    data = [corpus_of(one.module, str(file), trust or ()) for one, file in zip(taggers, files, strict=True)]
    made.tuned = best_threshold(taggers, data)
    folder = make_unique_folder(Path(out) / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    report(taggers, data, made.tuned, found, RunFolder(folder))
    checkpoint = folder / CHECKPOINTS / "best.ckpt"
    checkpoint.parent.mkdir()
    made.save(checkpoint)
    print_summary(models=str(len(taggers)), folder=str(folder), checkpoint=str(checkpoint))


def best_threshold(taggers: Sequence[Tagger], data: Sequence[TextDataModule]) -> float:
    """Tune the threshold on the validation documents of the first run; runs may draw different ones."""
    return measured(taggers, data[0].targets("val"), ranked(taggers, data, "val"), 0.5).best_threshold()


def ranked(taggers: Sequence[Tagger], data: Sequence[TextDataModule], split: str) -> Ranking:
    """Mean ranking of the documents of a split."""
    rankings = []
    for one, corpus in zip(taggers, data, strict=True):
        depth = min(DEPTH, one.module.space.num_labels)
        rankings.append(rank_split(corpus, split, partial(rank, one.module, depth), depth))
    rows = slices(len(rankings[0].labels))
    parts = [mean_ranking([take(one, block) for one in rankings], rankings[0].labels.shape[1]) for block in rows]
    return Ranking(torch.cat([part.scores for part in parts]), torch.cat([part.labels for part in parts]))


def rank(module: RankingModel, depth: int, batch: Batch) -> Ranking:
    return module.rank(batch.to(module.device), depth)


def measured(taggers: Sequence[Tagger], targets: Targets, ranking: Ranking, threshold: float) -> RankingMetrics:
    metrics = RankingMetrics(taggers[0].module.space)
    metrics.tuned_threshold.fill_(threshold)
    for rows in slices(len(targets)):
        part = take(ranking, rows)
        metrics.update(part.scores, part.labels, targets.take(rows))
    return metrics


def report(
    taggers: Sequence[Tagger],
    data: Sequence[TextDataModule],
    threshold: float,
    runs: Sequence[RunFolder],
    folder: RunFolder,
) -> None:
    """Test, print the metrics, and write what `compare` and `report` read."""
    split = "test" if len(data[0].prepared.rows("test")) else "val"
    targets, ranking = data[0].targets(split), ranked(taggers, data, split)
    metrics = measured(taggers, targets, ranking, threshold)
    values = {key: float(value) for key, value in metrics.compute().items()} | {"threshold": threshold}
    name = folder.path.parent.name
    facts: dict[str, Any] = {
        **{key: runs[0].facts.get(key) for key in SHARED_FACTS},
        "experiment": name,
        "backbone": " + ".join(dict.fromkeys(str(run.facts.get("backbone")) for run in runs)),
        "head": "Ensemble",
        "split": split,
        "seconds": total(runs, "seconds"),
        "parameters": total(runs, "parameters"),
        "members": [str(run.path) for run in runs],
    }
    kept = [kept_candidates(take(ranking, rows), targets.take(rows), rows, threshold) for rows in slices(len(targets))]
    folder.write_config(yaml.safe_dump({"name": name, "members": facts["members"]}))
    ids, space = list(data[0].prepared.rows(split).ids()), taggers[0].module.space
    folder.write_predictions(prediction_table(kept, ids), label_table(space))
    folder.write_results(facts, values)
    Console().print(tables(f"{name} on {runs[0].corpus}: {'validation' if split == 'val' else split}", values))


def total(runs: Sequence[RunFolder], column: str) -> float | None:
    """Sum of a cost over the runs; None if one does not have it."""
    values = [run.value(column) for run in runs]
    return None if None in values else sum(value for value in values if value is not None)
