"""`zoo ensemble`: the mean of the probabilities of several models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from heads import Ranking
from zoo.commands.combined import Member, check_name, measured, read_members, test_split, write_run
from zoo.commands.rerank import slices, take
from zoo.training.ensemble_tagger import DEPTH, EnsembleTagger, mean_ranking


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
    check_name(name)
    members = read_members(runs, device, trust or ())
    made = EnsembleTagger([member.tagger for member in members], [member.content for member in members])
    made.tuned = best_threshold(members)
    write_run(members, made, ranked(members, test_split(members[0].data)), "Ensemble", name, out)


def best_threshold(members: Sequence[Member]) -> float:
    """Tune the threshold on the validation documents of the first run; runs may draw different ones."""
    return measured(members[0].space, members[0].data.targets("val"), ranked(members, "val"), 0.5).best_threshold()


def ranked(members: Sequence[Member], split: str) -> Ranking:
    """Mean ranking of the documents of a split."""
    rankings = [member.rankings(split, DEPTH) for member in members]
    return mean_of(rankings, rankings[0].labels.shape[1])


def mean_of(rankings: Sequence[Ranking], depth: int) -> Ranking:
    """Mean of rankings of many documents, block by block."""
    blocks = slices(len(rankings[0].labels))
    parts = [mean_ranking([take(one, block) for one in rankings], depth) for block in blocks]
    return Ranking(torch.cat([part.scores for part in parts]), torch.cat([part.labels for part in parts]))
