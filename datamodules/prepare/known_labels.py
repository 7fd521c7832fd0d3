"""Labels and vocabulary of a trained model, which a corpus is read with to train the model further."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from datamodules.batch import LabelSpace
from datamodules.prepare.vocabulary import Vocabulary
from zoo.core.errors import UserError


class Known(NamedTuple):
    """Label space and vocabulary of a checkpoint."""

    space: LabelSpace
    vocabulary: Vocabulary

    def encoder(self, max_length: int, windows: int) -> Vocabulary:
        """The vocabulary with the lengths of a corpus."""
        found = Vocabulary.from_text(self.vocabulary.text, max_length, windows)
        if found.has_values:
            raise UserError("the checkpoint reads features: labels can be added to models of texts only")
        return found

    def space_with(self, trained: Iterable[str], labels: Iterable[str]) -> LabelSpace:
        """The label space, with labels of the corpus that it lacks as unseen ones: indices of others do not change.

        Args:
            trained: labels of the training documents.
            labels: labels of all documents.
        """
        known, (names, every) = self.space, ({*self.space.names}, {*self.space.labels})
        others = [name for name in labels if name not in every]
        if new := [name for name in trained if name not in names] or (others if known.unseen_texts else []):
            raise UserError(
                f"the checkpoint lacks {len(new):,} labels of the corpus, such as {min(new)!r}: "
                "add them with `zoo add-labels` first"
            )
        counts = [*known.reference_counts, *(0 for _ in others)]
        return replace(known, unseen=[*known.unseen, *others], reference_counts=counts)
