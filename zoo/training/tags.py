"""Labels of a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from datamodules.batch import LabelSpace
from zoo.core.errors import UserError
from zoo.core.hierarchy import Hierarchy
from zoo.training.spans import Similar, Span


@dataclass(frozen=True)
class Tag:
    """A label with its probability.

    Attributes:
        label: name of the label.
        score: probability.
        spans: the words of the text that speak for the label, in their order; empty without `explain`.
        documents: similar training documents with the label, of models that compare with these; empty without
            `explain`.
    """

    label: str
    score: float
    spans: tuple[Span, ...] = ()
    documents: tuple[Similar, ...] = ()


class Tags(list[Tag]):
    """Labels of a text, best first.

    Attributes:
        known: whether the model knows a word of the text. If not, these are the labels of every such text.
    """

    def __init__(self, tags: Iterable[Tag] = (), known: bool = True) -> None:
        super().__init__(tags)
        self.known = known


class WithAncestors:
    """Adds the ancestors of labels; what speaks for a label speaks for these.

    Args:
        space: labels with their parents.
    """

    def __init__(self, space: LabelSpace) -> None:
        if not space.parents:
            raise UserError("`ancestors=True`: the labels of this model have no parents; train with `data.label_texts`")
        self.names, self.hierarchy = space.labels, Hierarchy(space.parents)
        self.index = {name: i for i, name in enumerate(self.names)}

    def __call__(self, tags: Tags) -> Tags:
        """Labels and ancestors by score, which is at least that of the descendants."""
        best = {tag.label: tag for tag in tags}
        for tag in tags:
            for ancestor in self.hierarchy.ancestors(self.index[tag.label]):
                name = self.names[ancestor]
                if name not in best or best[name].score < tag.score:
                    best[name] = replace(best.get(name, tag), label=name, score=tag.score)
        return Tags(sorted(best.values(), key=lambda tag: -tag.score), tags.known)
