"""What is wrong with a corpus: found in one reading of each file, and a second one for what is to be shown."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from datamodules.locate import numbered
from datamodules.near_duplicates import Hashes, Signatures, candidates, jaccard, shingles
from datamodules.prepare import Corpus
from datamodules.progress import progress_bar
from datamodules.readers import BadRows, Document

SHOWN = 5  # examples of a problem

Ints = NDArray[np.int64]


@dataclass
class Place:
    """Where a document stands."""

    split: str
    line: int
    id: str = ""

    def __str__(self) -> str:
        return f"{self.split} line {self.line}" + (f" (id {self.id})" if self.id else "")


@dataclass
class Problem:
    """One kind of thing that is wrong: how often, in words, with the first examples."""

    kind: str
    count: int
    what: str
    documents: list[list[Place]] = field(default_factory=list)  # that have it, or that have it together
    details: list[str] = field(default_factory=list)  # names of labels, or why rows are bad

    def __str__(self) -> str:
        examples = self.details or [" = ".join(map(str, places)) for places in self.documents]
        more = "; ..." if self.count > len(examples) else ""
        return f"{self.count:,} {self.what}" + (f": {'; '.join(examples)}{more}" if examples else "")


class SplitFacts:
    """What is kept of a split's documents: a few hashes of each, and no text."""

    def __init__(self, has_features: bool, with_signatures: bool) -> None:
        self.lines, self._ids, self._texts = array("Q"), array("Q"), array("Q")
        self.signatures = Signatures(has_features) if with_signatures else None
        self.empty: list[int] = []
        self.unlabelled: list[int] = []
        self.labels: dict[str, None] = {}  # in the order in which they came

    def add(self, line: int, document: Document) -> None:
        row, text = len(self.lines), document.text.strip()
        self.lines.append(line)
        self._ids.append(hashed(document.id))
        self._texts.append(hashed(text))
        self.labels.update(dict.fromkeys(document.labels))
        if not text:
            self.empty.append(row)
        if not document.labels:
            self.unlabelled.append(row)
        if self.signatures is not None:
            self.signatures.add(text)

    @property
    def ids(self) -> Hashes:
        return np.frombuffer(self._ids, np.uint64)

    @property
    def texts(self) -> Hashes:
        return np.frombuffer(self._texts, np.uint64)


def hashed(text: str) -> int:
    """64 bits of a text; 0 stands for none."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) if text else 0


def repeats(hashes: Hashes) -> tuple[Ints, Ints]:
    """Rows whose hash an earlier row has, and the first such row of each."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    earlier = first[inverse]
    later = np.flatnonzero((earlier != np.arange(len(hashes))) & (hashes != 0))
    return later, earlier[later]


def shared(hashes: Hashes, earlier: Hashes) -> tuple[Ints, Ints]:
    """Rows whose hash occurs among those of another split, and the first row there."""
    values, first = np.unique(earlier, return_index=True)
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.searchsorted(values, hashes).clip(max=len(values) - 1)
    rows = np.flatnonzero((values[places] == hashes) & (hashes != 0))
    return rows, first[places[rows]]


class Check:
    """Looks through a corpus; with `near` as 0 it does not look for documents that are nearly the same."""

    def __init__(self, corpus: Corpus, near: float = 0.9) -> None:
        self.corpus, self.near = corpus, near if len(corpus.sources) > 1 else 0.0
        self.splits: dict[str, SplitFacts] = {}
        self.problems: list[Problem] = []
        self.likely: dict[str, dict[int, list[int]]] = {}  # rows of a split, with those of train to compare with
        self.waiting: list[tuple[Problem, list[list[tuple[str, int]]]]] = []  # for the ids of their documents

    def run(self) -> list[Problem]:
        self._read()
        self._find_bad_rows()
        self._find_gaps()
        self._find_repeats("id", "ids", {split: facts.ids for split, facts in self.splits.items()})
        self._find_repeats("text", "texts", {split: facts.texts for split, facts in self.splits.items()})
        self._find_label_problems()
        self._find_candidates()
        if self.waiting or self.likely:
            self._read_again()
        return self.problems

    def _read(self) -> None:
        with progress_bar(f"Checking {self.corpus.name}") as bar:
            advance = bar(sum(source.size for source in self.corpus.sources.values()))
            for split, source in self.corpus.sources.items():
                facts = self.splits[split] = SplitFacts(self.corpus.has_features, self.near > 0)
                for line, document in numbered(source, advance):
                    facts.add(line, document)

    def _find_bad_rows(self) -> None:
        for split, source in self.corpus.sources.items():
            bad = getattr(source, "bad", None)
            if isinstance(bad, BadRows) and (count := bad.counts.get(path := source.path, 0)):  # type: ignore[attr-defined]
                reasons = [f"line {line}: {reason}" for line, reason in bad.first[path]]
                self.problems.append(Problem("bad rows", count, f"bad rows in {path}", details=reasons))
            if not len(self.splits[split].lines):
                self.problems.append(Problem("no documents", 1, f"split without documents: {split}"))

    def _find_gaps(self) -> None:
        what = "features" if self.corpus.has_features else "text"
        for split, facts in self.splits.items():
            self._tell("empty texts", f"{split} documents without {what}", [[(split, row)] for row in facts.empty])
        rows = self.splits["train"].unlabelled
        self._tell("without labels", "train documents without labels", [[("train", row)] for row in rows])

    def _find_repeats(self, one: str, several: str, hashes: dict[str, Hashes]) -> None:
        for split in hashes:
            if several == "texts" and split != "train":
                continue
            pairs = zip(*(rows.tolist() for rows in repeats(hashes[split])), strict=True)
            found = [[(split, row), (split, first)] for row, first in pairs]
            self._tell(f"repeated {several}", f"{split} documents with the {one} of an earlier one", found)
        for earlier, split in combinations(hashes, 2):
            pairs = zip(*(rows.tolist() for rows in shared(hashes[split], hashes[earlier])), strict=True)
            found = [[(split, row), (earlier, first)] for row, first in pairs]
            self._tell(f"shared {several}", f"{split} documents with the {one} of a {earlier} document", found)

    def _find_label_problems(self) -> None:
        train = self.splits["train"].labels
        every = dict.fromkeys(name for facts in self.splits.values() for name in facts.labels)
        self._tell_labels("unseen labels", "labels that no training document has", [n for n in every if n not in train])
        alike: dict[str, list[str]] = defaultdict(list)
        for name in every:
            alike["".join(name.split()).casefold()].append(name)
        groups = [" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
        self._tell_labels("labels alike", "groups of labels that differ in case or spaces alone", groups)

    def _tell_labels(self, kind: str, what: str, names: list[str]) -> None:
        if names:
            self.problems.append(Problem(kind, len(names), what, details=names[:SHOWN]))

    def _tell(self, kind: str, what: str, found: list[list[tuple[str, int]]]) -> None:
        if found:
            self.problems.append(problem := Problem(kind, len(found), what))
            self.waiting.append((problem, found[:SHOWN]))

    def _find_candidates(self) -> None:
        """Of each document that is not in train to the letter, those there that are likely to be near it."""
        train = self.splits["train"]
        if train.signatures is None:
            return
        for split, facts in self.splits.items():
            if split != "train" and facts.signatures is not None:
                same = set(shared(facts.texts, train.texts)[0].tolist())
                found = candidates(train.signatures.matrix(), facts.signatures.matrix(), self.near)
                self.likely[split] = {row: others for row, others in found.items() if row not in same}

    def _read_again(self) -> None:
        """Train comes last: of the others' candidates the shingles are there by then, and of train's none is kept."""
        partners = self._partners()
        ids: dict[tuple[str, int], str] = {}
        kept: dict[tuple[str, int], Hashes] = {}
        nearest: dict[tuple[str, int], tuple[float, int]] = {}
        for split, row, document in self._rows_again(self._wanted(partners)):
            ids[split, row] = document.id
            if row not in (partners if split == "train" else self.likely.get(split, ())):
                continue
            own = shingles(document.text.strip(), self.corpus.has_features)
            if split != "train":
                kept[split, row] = own
                continue
            for place in partners[row]:
                nearest[place] = max(nearest.get(place, (0.0, 0)), (jaccard(own, kept[place]), -row))
        self._find_near(nearest)
        for problem, examples in self.waiting:
            problem.documents = [[self._place(*place, ids) for place in places] for places in examples]

    def _partners(self) -> dict[int, list[tuple[str, int]]]:
        """Documents of other splits that a row of train is to be compared with."""
        partners: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for split, rows in self.likely.items():
            for row, others in rows.items():
                for other in others:
                    partners[other].append((split, row))
        return partners

    def _wanted(self, partners: Iterable[int]) -> dict[str, set[int]]:
        """Rows of each split that are to be compared or shown."""
        wanted: dict[str, set[int]] = defaultdict(set, {split: set(rows) for split, rows in self.likely.items()})
        wanted["train"].update(partners)
        for _, examples in self.waiting:
            for split, row in (place for places in examples for place in places):
                wanted[split].add(row)
        return wanted

    def _rows_again(self, wanted: dict[str, set[int]]) -> Iterator[tuple[str, int, Document]]:
        sources = {split: self.corpus.sources[split] for split in (*(s for s in wanted if s != "train"), "train")}
        with progress_bar(f"Comparing {self.corpus.name}") as bar:
            advance = bar(sum(source.size for source in sources.values()))
            for split, source in sources.items():
                for row, document in enumerate(source.read(advance)):
                    if row in wanted[split]:
                        yield split, row, document

    def _find_near(self, nearest: dict[tuple[str, int], tuple[float, int]]) -> None:
        for split in self.likely:
            found = [
                [place, ("train", -row)]
                for place, (share, row) in sorted(nearest.items())
                if place[0] == split and share >= self.near
            ]
            parts = "features" if self.corpus.has_features else "runs of three words"
            what = f"{split} documents that share {self.near:.0%} or more of their {parts} with a train document"
            self._tell("near duplicates", what, found)

    def _place(self, split: str, row: int, ids: dict[tuple[str, int], str]) -> Place:
        return Place(split, self.splits[split].lines[row], ids.get((split, row), ""))
