"""Finished models as one: their candidates are ranked by a `Blend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heads.base import Ranking
from heads.blend.blend import Blend
from zoo.core.errors import UserError
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.explain import Explanations, neighbors, similar
from zoo.training.stored import migrated
from zoo.training.tagger import Tagger, tagger_of


class BlendTagger(EnsembleTagger):
    """Ranks the candidates of several models by the trees of a `Blend`.

    Args:
        members: taggers of the same labels.
        contents: content of the members' checkpoints.
        ranker: tagger whose head is a `Blend` of `Proposals`, with the words that its features read.
        ranker_content: content of its checkpoint.
        threshold: score threshold with the best micro-F1 on the validation documents.
    """

    def __init__(
        self,
        members: Sequence[Tagger],
        contents: Sequence[dict[str, Any]],
        ranker: Tagger,
        ranker_content: dict[str, Any],
        threshold: float = 0.5,
    ) -> None:
        super().__init__(members, contents, threshold)
        if not isinstance(ranker.module.head, Blend) or len(ranker.module.head.inner_heads) != len(members):
            raise UserError("the ranker of these models is not a Blend of as many members")
        if ranker.names != self.names:
            raise UserError("the ranker has other labels than the models")
        self.ranker, self.ranker_content, self.head = ranker, ranker_content, ranker.module.head

    def stored(self) -> dict[str, Any]:
        return super().stored() | {"ranker": self.ranker_content}

    @torch.inference_mode()
    def combined(self, texts: list[str], depth: int) -> tuple[Ranking, Tensor]:
        candidates = min(self.head.candidates, len(self.names))
        found = [member.rank_texts(texts, candidates) for member in self.members]
        scores, labels = torch.zeros(len(texts), depth), torch.full((len(texts), depth), -1)
        for rows, batch in self.ranker.batches(texts, [[] for _ in texts]):
            own = [Ranking(ranking.scores[rows], ranking.labels[rows]) for ranking, _ in found]
            ranking = self.head.blended(own, batch, depth)
            width = ranking.labels.shape[1]
            scores[rows, :width], labels[rows, :width] = ranking.scores, ranking.labels
        return Ranking(scores, labels), torch.stack([is_known for _, is_known in found]).any(0)

    def explain_texts(self, texts: list[str], labels: Tensor) -> Explanations:
        """Words by the members, and the training documents that the blend compares with."""
        found = super().explain_texts(texts, labels)
        for rows, batch in self.ranker.batches(texts, [[] for _ in texts]):
            near = neighbors(self.ranker.module, batch, labels[rows])
            for i, row in enumerate(rows):
                for place, label in enumerate(labels[row].tolist()):
                    if near is not None and label >= 0:
                        found[row][place] = replace(found[row][place], documents=similar(near, i, place))
        return found


def blend_of(
    members: Sequence[Tagger],
    contents: Sequence[dict[str, Any]],
    content: Any,
    threshold: float,
    path: Path,
    trust: Sequence[str],
) -> BlendTagger:
    """Make the tagger from the contents of checkpoints."""
    if not isinstance(content, dict):
        raise UserError("its ranker is damaged")
    content = {**content, "zoo": migrated(content.get("zoo"))}
    return BlendTagger(members, contents, tagger_of(content, path, "cpu", trust), content, threshold)
