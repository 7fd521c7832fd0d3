"""Tag texts with a trained model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import torch

from datamodules.batch import Batch, Targets
from datamodules.prepare.rows import pad, pad_values
from zoo.core.errors import UserError, first_line
from zoo.training.checkpoint import rebuild, save
from zoo.training.ranking_model import RankingModel

WINDOW = 16  # number of batches that are sorted by length together
MAX_NAME_LENGTH = 80  # of a label in an error message


@dataclass(frozen=True)
class Tag:
    """A label with its probability."""

    label: str
    score: float


class Tagger:
    """Ranks labels for texts: `zoo.load("best.ckpt").tag(["a text"])`."""

    def __init__(self, module: RankingModel, batch_size: int = 64) -> None:
        if module.vocabulary is None:
            raise UserError("this model has no vocabulary: load it from a checkpoint of `zoo fit`")
        self.module, self.vocabulary, self.batch_size = module.eval(), module.vocabulary, batch_size

    @property
    def names(self) -> list[str]:
        """Labels that the model knows."""
        return self.module.space.names

    @property
    def threshold(self) -> float:
        """Score threshold with the best micro-F1 on the validation documents."""
        return self.module.threshold

    def tag(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> list[list[Tag]]:
        """Return the k best labels of each text with a score of at least `threshold`, best first."""
        return list(self.stream(texts, k, threshold))

    def stream(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> Iterator[list[Tag]]:
        """Like `tag`, but yields the labels of one text at a time and needs constant memory."""
        if isinstance(texts, str):
            raise TypeError("`texts` is a single string: pass a list of texts")
        if k < 1 or self.batch_size < 1:
            raise UserError(f"`k={k}` and `batch_size={self.batch_size}` must be at least 1")
        source = iter(texts)
        while window := list(islice(source, self.batch_size * WINDOW)):
            yield from self._window(window, k, threshold)

    @torch.no_grad()
    def add_labels(self, examples: Iterable[tuple[str, Sequence[str]]], update: bool = False) -> Self:
        """Add labels in place, without gradient steps: `tagger.add_labels([("a text", ["new label"]), ...])`.

        Args:
            examples: texts with their labels.
            update: also update labels that the model already knows; they are refused by default.
        """
        texts, labels = check_examples(examples)
        counts, space = Counter(name for names in labels for name in names), self.module.space
        known = {name: counts[name] for name in space.names if name in counts}
        if known and not update:
            raise UserError(
                f"the model already knows {quoted(list(known))}: remove known labels from the examples "
                "(`ignore_known`), or update them too (`update`)"
            )
        grown = space.grown({name: count for name, count in counts.items() if name not in known})
        index = {name: i for i, name in enumerate(grown.names)}
        head = deepcopy(self.module.head)  # so that an error leaves the model unchanged
        batches = self._batches(texts, [[index[name] for name in names] for names in labels])
        head.learn_labels(grown, ((self.module(batch), batch.targets) for _, batch in batches))
        self.module.head, self.module.space = head, grown.with_more(known)
        return self

    def save(self, path: str | Path) -> None:
        """Write a checkpoint for `zoo.load`, `zoo predict` and `zoo add-labels`; training cannot resume from it."""
        save(self.module, path)

    def _window(self, texts: list[str], k: int, threshold: float) -> list[list[Tag]]:
        tags: list[list[Tag]] = [[] for _ in texts]
        for rows, batch in self._batches(texts, [[] for _ in texts]):
            for row, found in zip(rows, self._tags(batch, k), strict=True):
                tags[row] = [tag for tag in found if tag.score >= threshold]
        return tags

    def _batches(self, texts: list[str], labels: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of similar length, each with the positions of its texts."""
        encoded, values = self.vocabulary.encode_with_values(texts)
        tokens = [np.array(ids) for ids in encoded]
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            ids, mask = pad([tokens[row] for row in rows], self.vocabulary.pad_id)
            targets = Targets.from_lists([labels[row] for row in rows])
            each = pad_values([np.array(values[row]) for row in rows], mask) if values else None
            batch = Batch(ids, mask, targets, torch.arange(len(rows)), each)
            yield rows, batch.to(self.module.device)

    @torch.inference_mode()
    def _tags(self, batch: Batch, k: int) -> list[list[Tag]]:
        ranking = self.module.rank(batch, min(k, len(self.names)))
        return [
            [Tag(self.names[label], score) for label, score in zip(labels, scores, strict=True) if label >= 0]
            for labels, scores in zip(ranking.labels.tolist(), ranking.scores.tolist(), strict=True)
        ]


def check_examples(examples: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[str], list[list[str]]]:
    """Split examples into texts and labels; drop texts without labels."""
    if isinstance(examples, str | Mapping):
        raise TypeError('`examples` must be pairs of a text and its labels: [("a text", ["a label"]), ...]')
    texts: list[str] = []
    labels: list[list[str]] = []
    for number, example in enumerate(examples, 1):
        text, given = example if isinstance(example, tuple | list) and len(example) == 2 else (None, ())
        if not isinstance(text, str) or isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise TypeError(f"example {number} must be a text and a list of labels, all of them strings")
        names = list(dict.fromkeys(name.strip() for name in given))  # as corpora are read
        if "" in names or (names and not text.strip()):
            raise UserError(f"example {number} has an empty {'label' if text.strip() else 'text'}")
        if names:
            texts.append(text)
            labels.append(names)
    if not texts:
        raise UserError("no document has a label: nothing to learn from")
    return texts, labels


def quoted(names: list[str]) -> str:
    """Format the first name and the number of the others."""
    first = repr(names[0] if len(names[0]) <= MAX_NAME_LENGTH else names[0][:MAX_NAME_LENGTH] + "...")
    return first if len(names) == 1 else f"{first} and {len(names) - 1:,} more"


def load(path: str | Path, device: str | None = None) -> Tagger:
    """Load a tagger from a checkpoint file."""
    module = rebuild(path)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return Tagger(module.to(place))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {place!r}: {first_line(error)}") from error
