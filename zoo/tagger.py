"""A trained model as a function from texts to labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from datamodules.batch import Batch, Targets
from datamodules.errors import UserError, first_line
from datamodules.rows import pad
from zoo.checkpoint import rebuild
from zoo.module import ZooModule

WINDOW = 16  # batches that are sorted by length together


@dataclass(frozen=True)
class Tag:
    """A label with its probability."""

    label: str
    score: float


class Tagger:
    """Ranks labels for texts: `zoo.load("best.ckpt").tag(["a text"])`."""

    def __init__(self, module: ZooModule, batch_size: int = 64) -> None:
        if module.vocabulary is None:
            raise UserError("this model has no vocabulary: load it from a checkpoint of zoo fit")
        self.module, self.vocabulary, self.batch_size = module.eval(), module.vocabulary, batch_size
        self.names = module.space.names

    @property
    def threshold(self) -> float:
        """The score that gave the best micro-F1 on validation documents."""
        return self.module.threshold

    def tag(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> list[list[Tag]]:
        """The k best labels of each text that score at least `threshold`, best first."""
        return list(self.stream(texts, k, threshold))

    def stream(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> Iterator[list[Tag]]:
        """As `tag`, one text after the other, in constant memory."""
        if isinstance(texts, str):
            raise TypeError("texts is one string: give a list of texts")
        if k < 1 or self.batch_size < 1:
            raise UserError(f"k is {k} and batch_size {self.batch_size}: both must be at least 1")
        source = iter(texts)
        while window := list(islice(source, self.batch_size * WINDOW)):
            yield from self._window(window, k, threshold)

    def _window(self, texts: list[str], k: int, threshold: float) -> list[list[Tag]]:
        tokens = [np.array(ids) for ids in self.vocabulary.encode(texts)]
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        tags: list[list[Tag]] = [[] for _ in texts]
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            for row, found in zip(rows, self._batch([tokens[row] for row in rows], k), strict=True):
                tags[row] = [tag for tag in found if tag.score >= threshold]
        return tags

    @torch.inference_mode()
    def _batch(self, tokens: list[np.ndarray], k: int) -> list[list[Tag]]:
        ids, mask = pad(tokens, self.vocabulary.pad_id)
        batch = Batch(ids, mask, Targets.from_lists([[] for _ in tokens]), torch.arange(len(tokens)))
        ranking = self.module.rank(batch.to(self.module.device), min(k, len(self.names)))
        return [
            [Tag(self.names[label], score) for label, score in zip(labels, scores, strict=True) if label >= 0]
            for labels, scores in zip(ranking.labels.tolist(), ranking.scores.tolist(), strict=True)
        ]


def load(path: str | Path, device: str | None = None) -> Tagger:
    """A tagger from a checkpoint file alone."""
    module = rebuild(path)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return Tagger(module.to(place))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {place!r}: {first_line(error)}") from error
