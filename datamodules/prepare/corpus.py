"""A corpus: named splits, and where their documents come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from datamodules.prepare.readers import Document

SPLITS = ("train", "val", "test")


class Source(Protocol):
    """Documents of one split, which can be read several times."""

    @property
    def size(self) -> int: ...  # sum of the increments passed to `progress`

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]: ...

    def fingerprint(self) -> str:
        """Everything that the documents depend on, for the cache key."""

    def report(self) -> list[str]:
        """Lines about problems that `read` found."""


@dataclass(frozen=True)
class Corpus:
    """Named splits. If there is no `val`, a part of `train` is split off."""

    name: str
    sources: dict[str, Source]
    is_sample: bool = False
    has_features: bool = False  # texts are `name:value name:value`, as in sparse files


@dataclass(frozen=True)
class JoinedSource:
    """Documents of several splits, one after the other."""

    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        return chain.from_iterable(source.read(progress) for source in self.sources)

    def fingerprint(self) -> str:
        return " + ".join(source.fingerprint() for source in self.sources)

    def report(self) -> list[str]:
        return [line for source in self.sources for line in source.report()]


def with_merged_val(corpus: Corpus) -> Corpus:
    """Append the validation documents, if there are any, to the training documents."""
    if "val" not in corpus.sources:
        return corpus
    others = {split: source for split, source in corpus.sources.items() if split != "val"}
    joined = JoinedSource((corpus.sources["train"], corpus.sources["val"]))
    return replace(corpus, sources=others | {"train": joined})


def alike(names: Iterable[str]) -> list[list[str]]:
    """Group names that differ only in case or spaces."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups["".join(name.split()).casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]
