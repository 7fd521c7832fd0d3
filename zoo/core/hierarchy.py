"""Ancestors of labels that have parents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zoo.core.errors import MANY, UserError
from zoo.core.ragged import Lists


class Hierarchy:
    """Parents of labels; a label may have several.

    Args:
        parents: labels and their parents, label after label: child, parent, child, parent, ...
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self.parents: dict[int, list[int]] = {}
        for child, parent in zip(parents[::2], parents[1::2], strict=True):
            self.parents.setdefault(child, []).append(parent)
        self._known: dict[int, tuple[int, ...]] = {}

    def ancestors(self, label: int) -> tuple[int, ...]:
        """All ancestors of a label, the nearest first; a label in a cycle is not its own ancestor."""
        if label not in self._known:
            found: dict[int, None] = {}
            front = [label]
            while front:
                front = [parent for child in front for parent in self.parents.get(child, ())]
                front = [parent for parent in dict.fromkeys(front) if parent not in found and parent != label]
                found |= dict.fromkeys(front)
                if len(found) > MANY:
                    raise UserError(f"label {label} has more than {MANY:,} ancestors: the parents of labels are wrong")
            self._known[label] = tuple(found)
        return self._known[label]

    def closures(self, num_labels: int) -> Lists:
        """Each label with its ancestors."""
        each = [(label, *self.ancestors(label)) for label in range(num_labels)]
        return Lists.of_sizes([len(row) for row in each], np.array([label for row in each for label in row], np.int64))
