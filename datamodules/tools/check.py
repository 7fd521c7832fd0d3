"""Search for problems in a corpus, in one pass over each file, and a second one over the documents to be shown."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from datamodules.corpora.hub_dataset import HubSource
from datamodules.prepare.corpus import Corpus, alike
from datamodules.prepare.file_source import FileSource
from datamodules.prepare.readers import Document
from datamodules.prepare.vocabulary import WORD
from datamodules.tools.locate import numbered
from datamodules.tools.near_duplicates import Hashes, Signatures, candidates, jaccard, shingles
from zoo.core.console import progress_bar
from zoo.core.hashing import hash64

SHOWN = 5  # examples of each problem
ANYTHING = re.compile(r"\S")

Ints = NDArray[np.int64]


@dataclass
class DocumentLocation:
    """Location of a document in a corpus."""

    split: str
    line: int
    id: str = ""

    def __str__(self) -> str:
        return f"{self.split} line {self.line}" + (f" (id {self.id})" if self.id else "")


@dataclass
class Problem:
    """Problem of a corpus, with its number of occurrences and the first examples."""

    kind: str
    count: int
    what: str
    documents: list[list[DocumentLocation]] = field(default_factory=list)  # examples, each one or more documents
    details: list[str] = field(default_factory=list)  # examples that are not documents

    def __str__(self) -> str:
        examples = self.details or [" = ".join(map(str, places)) for places in self.documents]
        more = "; ..." if self.count > len(examples) else ""
        return f"{self.count:,} {self.what}" + (f": {'; '.join(examples)}{more}" if examples else "")


class SplitFacts:
    """Hashes of the documents of a split, which fit into memory where texts would not."""

    def __init__(self, has_features: bool, with_signatures: bool) -> None:
        self.lines, self._ids, self._texts = array("Q"), array("Q"), array("Q")
        self.signatures = Signatures(has_features) if with_signatures else None
        self.empty: list[int] = []
        self.unlabelled: list[int] = []
        self.labels: dict[str, None] = {}  # ordered set
        self.taught = set[str]()  # labels with a document that has words
        self._word = ANYTHING if has_features else WORD

    def add(self, line: int, document: Document) -> None:
        row, text = len(self.lines), document.text.strip()
        self.lines.append(line)
        self._ids.append(hash64(document.id) if document.id else 0)  # 0 never counts as a duplicate
        self._texts.append(hash64(text) if text else 0)
        self.labels.update(dict.fromkeys(document.labels))
        if self._word.search(text):
            self.taught.update(document.labels)
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


def repeats(hashes: Hashes) -> tuple[Ints, Ints]:
    """Find rows with the hash of an earlier row, and the first row of that hash."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    earlier = first[inverse]
    later = np.flatnonzero((earlier != np.arange(len(hashes))) & (hashes != 0))
    return later, earlier[later]


def shared(hashes: Hashes, earlier: Hashes) -> tuple[Ints, Ints]:
    """Find rows with a hash of another split, and the first row of that hash there."""
    values, first = np.unique(earlier, return_index=True)
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.searchsorted(values, hashes).clip(max=len(values) - 1)
    rows = np.flatnonzero((values[places] == hashes) & (hashes != 0))
    return rows, first[places[rows]]


class Check:
    """Check of a corpus.

    Args:
        corpus: corpus to check.
        near: minimum Jaccard similarity of near duplicates; 0 turns their search off.
    """

    def __init__(self, corpus: Corpus, near: float = 0.9) -> None:
        self.corpus, self.near = corpus, near if len(corpus.sources) > 1 else 0.0
        self.splits: dict[str, SplitFacts] = {}
        self.problems: list[Problem] = []
        self.candidates: dict[str, dict[int, list[int]]] = {}  # by split: rows, with similar rows of train
        self.examples: list[tuple[Problem, list[list[tuple[str, int]]]]] = []  # (split, row) of documents

    def run(self) -> list[Problem]:
        self._read()
        self._find_bad_rows()
        self._find_missing()
        self._find_repeats("id", "ids", {split: facts.ids for split, facts in self.splits.items()})
        self._find_repeats("text", "texts", {split: facts.texts for split, facts in self.splits.items()})
        self._find_label_problems()
        self._find_candidates()
        if self.examples or self.candidates:
            self._second_pass()
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
            if isinstance(source, FileSource | HubSource) and (count := source.bad.counts.get(source.path, 0)):
                reasons = [f"line {line}: {reason}" for line, reason in source.bad.first[source.path]]
                self.problems.append(Problem("bad rows", count, f"bad rows in {source.path}", details=reasons))
            if not len(self.splits[split].lines):
                self.problems.append(Problem("no documents", 1, f"split without documents: {split}"))

    def _find_missing(self) -> None:
        what = "features" if self.corpus.has_features else "text"
        for split, facts in self.splits.items():
            self._add("empty texts", f"{split} documents without {what}", [[(split, row)] for row in facts.empty])
        rows = self.splits["train"].unlabelled
        self._add("without labels", "train documents without labels", [[("train", row)] for row in rows])

    def _find_repeats(self, one: str, several: str, hashes: dict[str, Hashes]) -> None:
        for split in hashes:
            if several == "texts" and split != "train":
                continue
            pairs = zip(*(rows.tolist() for rows in repeats(hashes[split])), strict=True)
            found = [[(split, row), (split, first)] for row, first in pairs]
            self._add(f"repeated {several}", f"{split} documents with the {one} of an earlier one", found)
        for earlier, split in combinations(hashes, 2):
            pairs = zip(*(rows.tolist() for rows in shared(hashes[split], hashes[earlier])), strict=True)
            found = [[(split, row), (earlier, first)] for row, first in pairs]
            self._add(f"shared {several}", f"{split} documents with the {one} of a {earlier} document", found)

    def _find_label_problems(self) -> None:
        train = self.splits["train"].labels
        every = dict.fromkeys(name for facts in self.splits.values() for name in facts.labels)
        self._add_labels("unseen labels", "labels without training documents", [n for n in every if n not in train])
        untaught = [name for name in train if name not in self.splits["train"].taught]
        what = "features" if self.corpus.has_features else "words"
        self._add_labels("labels without words", f"labels whose training documents have no {what}", untaught)
        groups = [" = ".join(map(repr, names)) for names in alike(every)]
        self._add_labels("labels alike", "groups of labels that differ only in case or spaces", groups)

    def _add_labels(self, kind: str, what: str, names: list[str]) -> None:
        if names:
            self.problems.append(Problem(kind, len(names), what, details=names[:SHOWN]))

    def _add(self, kind: str, what: str, found: list[list[tuple[str, int]]]) -> None:
        if found:
            self.problems.append(problem := Problem(kind, len(found), what))
            self.examples.append((problem, found[:SHOWN]))

    def _find_candidates(self) -> None:
        """Find training documents that are probably near duplicates of documents of other splits, but not equal."""
        train = self.splits["train"]
        if train.signatures is None:
            return
        for split, facts in self.splits.items():
            if split != "train" and facts.signatures is not None:
                same = set(shared(facts.texts, train.texts)[0].tolist())
                found = candidates(train.signatures.matrix(), facts.signatures.matrix(), self.near)
                self.candidates[split] = {row: others for row, others in found.items() if row not in same}

    def _second_pass(self) -> None:
        """Compare candidates exactly, and look up the ids of examples.

        `train` comes last, so that only the shingles of the other splits are kept in memory.
        """
        partners = self._partners()
        ids: dict[tuple[str, int], str] = {}
        kept: dict[tuple[str, int], Hashes] = {}
        nearest: dict[tuple[str, int], tuple[float, int]] = {}
        for split, row, document in self._rows_again(self._wanted(partners)):
            ids[split, row] = document.id
            if row not in (partners if split == "train" else self.candidates.get(split, ())):
                continue
            own = shingles(document.text.strip(), self.corpus.has_features)
            if split != "train":
                kept[split, row] = own
                continue
            for place in partners[row]:
                nearest[place] = max(nearest.get(place, (0.0, 0)), (jaccard(own, kept[place]), -row))
        self._find_near(nearest)
        for problem, examples in self.examples:
            problem.documents = [[self._location(*place, ids) for place in places] for places in examples]

    def _partners(self) -> dict[int, list[tuple[str, int]]]:
        """Candidates by row of train: the documents of other splits to compare it with."""
        partners: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for split, rows in self.candidates.items():
            for row, others in rows.items():
                for other in others:
                    partners[other].append((split, row))
        return partners

    def _wanted(self, partners: Iterable[int]) -> dict[str, set[int]]:
        """Rows of each split to be compared or shown."""
        wanted: dict[str, set[int]] = defaultdict(set, {split: set(rows) for split, rows in self.candidates.items()})
        wanted["train"].update(partners)
        for _, examples in self.examples:
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
        for split in self.candidates:
            found = [
                [place, ("train", -row)]
                for place, (share, row) in sorted(nearest.items())
                if place[0] == split and share >= self.near
            ]
            parts = "features" if self.corpus.has_features else "runs of three words"
            what = f"{split} documents that share {self.near:.0%} or more of their {parts} with a train document"
            self._add("near duplicates", what, found)

    def _location(self, split: str, row: int, ids: dict[tuple[str, int], str]) -> DocumentLocation:
        return DocumentLocation(split, self.splits[split].lines[row], ids.get((split, row), ""))
