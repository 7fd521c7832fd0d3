"""Ensembles of whole models, which may have different backbones and vocabularies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from heads.base import Ranking
from heads.tail.rankings import truncate
from zoo.core.errors import UserError, check_range
from zoo.training.arguments import checked_path
from zoo.training.calibration import Calibration
from zoo.training.checkpoint import check_target, write_checkpoint
from zoo.training.explain import Explanations
from zoo.training.spans import mean_explanation
from zoo.training.stored import FORMAT, migrated, reading
from zoo.training.tagger import Tagger, tagger_of

DEPTH = 100  # labels of a member that take part; those below count as 0


class EnsembleTagger(Tagger):
    """Ranks labels by the mean of the probabilities that several models give them.

    Args:
        members: taggers of the same labels.
        contents: content of the members' checkpoints, which `save` writes.
        threshold: score threshold with the best micro-F1 on the validation documents.
    """

    def __init__(self, members: Sequence[Tagger], contents: Sequence[dict[str, Any]], threshold: float = 0.5) -> None:
        if len(members) < 2:
            raise UserError(f"an ensemble needs at least two models, not {len(members)}")
        super().__init__(members[0].module, members[0].batch_size)
        self.members, self.contents, self.tuned = list(members), list(contents), threshold
        self.own_calibration: Calibration | None = None  # of the ensemble; members may have theirs
        for number, member in enumerate(self.members, 1):
            if member.names != self.names:
                raise UserError(f"model {number} has other labels than the first one: train them on the same documents")

    @property
    def threshold(self) -> float:
        return self.tuned

    @threshold.setter
    def threshold(self, value: float) -> None:
        check_range(0, 1, threshold=value)
        self.tuned = float(value)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the ensemble; those of members change what these contribute."""
        return self.own_calibration

    @calibration.setter
    def calibration(self, value: Calibration | None) -> None:
        self.own_calibration = value

    def add_labels(
        self,
        examples: Iterable[tuple[str, Sequence[str]]] = (),
        update: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> Self:
        raise UserError("an ensemble cannot learn labels: add them to its models, and combine these again")

    def save(self, path: Any) -> None:
        """Write a checkpoint for `zoo.load` and `zoo predict`, which holds those of the members."""
        target = check_target(checked_path(path))
        write_checkpoint({"zoo": self.stored()}, target)

    def stored(self) -> dict[str, Any]:
        """The entry `zoo` of a checkpoint."""
        calibration = self.calibration.stored() if self.calibration else None
        return {"format": FORMAT, "members": self.contents, "threshold": self.tuned, "calibration": calibration}

    @staticmethod
    def of(content: dict[str, Any], path: Path, device: Any, trust: Sequence[str]) -> EnsembleTagger:
        """Make the tagger from the content of a checkpoint of `zoo ensemble` or `zoo blend`."""
        with reading(path):
            stored = content["zoo"]
            check_range(0, 1, threshold=stored["threshold"])
            contents = [{**member, "zoo": migrated(member["zoo"])} for member in stored["members"]]
            members = [tagger_of(member, path, device, trust) for member in contents]
            if "ranker" not in stored:
                made = EnsembleTagger(members, contents, float(stored["threshold"]))
            else:
                from zoo.training.blend_tagger import blend_of

                made = blend_of(members, contents, stored["ranker"], float(stored["threshold"]), path, trust)
            made.own_calibration = Calibration.of(stored["calibration"], made.module.space)
            return made

    def rank_texts(self, texts: list[str], k: int) -> tuple[Ranking, Tensor]:
        depth = max(k, min(DEPTH, len(self.names)))
        ranking, known = self.combined(texts, self.calibration.depth(depth) if self.calibration else depth)
        return (truncate(ranking, k) if self.calibration is None else self.calibration.ranked(ranking, k)), known

    def combined(self, texts: list[str], depth: int) -> tuple[Ranking, Tensor]:
        """Rank labels before calibration; the second tells whether a model knows a word of a text."""
        found = [member.rank_texts(texts, depth) for member in self.members]
        known = torch.stack([is_known for _, is_known in found]).any(0)
        return mean_ranking([ranking for ranking, _ in found], depth), known

    def explain_texts(self, texts: list[str], labels: Tensor) -> Explanations:
        """Mean over the members."""
        each = [member.explain_texts(texts, labels) for member in self.members]
        return [[mean_explanation(reasons) for reasons in zip(*rows, strict=True)] for rows in zip(*each, strict=True)]


def mean_ranking(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Rank labels by their mean score; a label that one of the rankings does not have counts as 0 there."""
    labels = torch.cat([ranking.labels for ranking in rankings], 1)
    scores = torch.cat([ranking.scores for ranking in rankings], 1).masked_fill(labels < 0, 0) / len(rankings)
    labels, order = labels.sort(dim=1, stable=True)
    scores = scores.gather(1, order)
    is_new = torch.ones_like(labels, dtype=torch.bool)
    is_new[:, 1:] = labels[:, 1:] != labels[:, :-1]
    group = is_new.cumsum(1) - 1  # the same for all entries of a label
    sums = torch.zeros_like(scores).scatter_add_(1, group, scores)
    distinct = torch.full_like(labels, -1).scatter_(1, group, labels)
    best, places = sums.masked_fill(distinct < 0, -1).topk(min(k, labels.shape[1]), dim=1)
    chosen = distinct.gather(1, places)
    return Ranking(best.masked_fill(chosen < 0, 0), chosen)
