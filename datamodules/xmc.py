"""Corpora of features without texts, in the sparse format of the extreme classification repository."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from datamodules.base import TextDataModule, find_file
from datamodules.errors import UserError
from datamodules.prepare import Corpus, Source
from datamodules.readers import (
    PACKED,
    READERS,
    BadRows,
    Document,
    Format,
    Row,
    RowError,
    Rows,
    decompressed,
    fingerprint,
    read_documents,
    user_errors,
)
from datamodules.vocab import LARGEST, PAD, UNK, VALUES

EXTENSION = ".xmc"
SUFFIXES = [kind + packed for kind in (EXTENSION, ".txt") for packed in ("", *PACKED)]  # in a corpus folder
LABELS, FEATURES = "labels.txt", "features.txt"  # names, one on each line, that lie beside a file
HEADER = "the first line must be three numbers: rows, features and labels"


@dataclass
class Names:
    """Names that stand for the numbers of labels or features; without them, the numbers do."""

    what: str  # "label" or "feature"
    path: Path | None = None
    names: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, what: str, path: Path | None) -> Names:
        """Names that are not fit to tell labels or features apart are left out, and a line says so."""
        if path is None:
            return cls(what)
        with user_errors(path), path.open("rb", buffering=0) as file, decompressed(file, path) as stream:
            names = [line.decode(errors="replace").strip() for line in stream]
        if len(set(names)) == len(names) and "" not in names and (what == "label" or all(map(is_feature, names))):
            return cls(what, path, names)
        wrong = "repeat or are empty" if what == "label" else "repeat, are empty or hold spaces or colons"
        return cls(what, report=[f"{path}: some names {wrong}, so numbers stand for all {what}s"])

    def check(self, path: Path, size: int) -> None:
        """Refuse names that are not those of a file with so many."""
        if self.names and len(self.names) < size:
            raise UserError(
                f"{self.path} has {len(self.names):,} names, but {path} has {size:,} {self.what}s: "
                f"name the right file with --data.{self.what}s"
            )

    def name(self, number: str, limit: int | None) -> str:
        if not (number.isascii() and number.isdigit()):
            raise RowError(f"{self.what} {number[:40]!r} is not a number")
        place, limit = int(number), limit if limit is not None else len(self.names) or None
        if limit is not None and place >= limit:
            raise RowError(f"{self.what} {place} is out of range: there are {limit:,}, numbered from 0")
        return self.names[place] if self.names else str(place)

    def fingerprint(self) -> str:
        return hashlib.blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()


def is_feature(name: str) -> bool:
    """Whether `name:value` can be taken apart again."""
    return ":" not in name and len(name.split()) == 1 and name not in (PAD, UNK, VALUES)


@dataclass
class SparseFormat:
    """Lines `label,label feature:value feature:value`, after one with the numbers of rows, features and labels."""

    labels: Names
    features: Names

    @classmethod
    def beside(cls, path: Path, labels: Path | None = None, features: Path | None = None) -> SparseFormat:
        """With the names in given files, or in those of the usual names that lie in the folder of `path`."""
        places = {"label": labels or path.parent / LABELS, "feature": features or path.parent / FEATURES}
        found = {what: Names.read(what, place if place.is_file() else None) for what, place in places.items()}
        return cls(found["label"], found["feature"])

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> Rows:
        """As the readers of other formats give them; a line without anything is a document too."""
        header = parse_header(stream.readline())
        size, num_features, num_labels = header or (None, None, None)
        if header is None:
            yield 1, RowError(HEADER)
        else:
            self.features.check(path, header[1])
            self.labels.check(path, header[2])
        count = 0
        for number, line in enumerate(stream, 2):
            if line.isspace() and (size is None or count >= size):
                continue  # at the end of the file
            count += 1
            yield number, self._row(line, num_features, num_labels, format)
        if size is not None and count != size:
            yield count + 1, RowError(f"the header announces {size:,} rows, the file has {count:,}")

    def _row(self, line: bytes, num_features: int | None, num_labels: int | None, format: Format) -> Row:
        try:
            labels, pairs = take_apart(line.decode())
            names = [self.labels.name(label, num_labels) for label in labels]
            text = " ".join(f"{self.features.name(i, num_features)}:{value}" for i, value in pairs)
        except UnicodeDecodeError:
            return RowError("invalid UTF-8")
        except RowError as error:
            return error
        return {format.text_column: text, format.label_column or "": names}

    def fingerprint(self) -> str:
        return f"{self.labels.fingerprint()} {self.features.fingerprint()}"


def parse_header(line: bytes) -> tuple[int, int, int] | None:
    """Numbers of rows, features and labels."""
    fields = line.split()
    if len(fields) != 3 or not all(number.isdigit() for number in fields):
        return None
    rows, features, labels = map(int, fields)
    return rows, features, labels


def take_apart(line: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Numbers of labels, and of features with their values, all as they are written."""
    first, *others = line.split() or [""]
    if ":" in first or line[0].isspace():  # without labels the line should begin with a space, and often does not
        first, others = "", [first, *others]
    pairs = [pair.partition(":") for pair in others if pair]
    for number, colon, value in pairs:
        if not colon:
            raise RowError(f"{number[:40]!r} is not feature:value")
        if not is_number(value):
            raise RowError(f"feature {number[:40]} has the value {value[:40]!r}, which is not a number")
    return first.split(",") if first else [], [(number, value) for number, _, value in pairs]


def is_number(text: str) -> bool:
    try:
        return abs(float(text)) < LARGEST and "_" not in text
    except ValueError:
        return False


def _rows(stream: IO[bytes], path: Path, format: Format) -> Rows:
    return SparseFormat.beside(path).rows(stream, path, format)


READERS[EXTENSION] = _rows  # for whatever reads documents by their file's extension


class SparseSource:
    """Documents of one sparse file."""

    def __init__(self, path: Path, format: SparseFormat, bad: BadRows, remarks: list[str]) -> None:
        self.path, self.format, self.bad, self.remarks = path, format, bad, remarks
        self.size = path.stat().st_size

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        return read_documents(self.path, Format(), self.bad, progress, self.format.rows)

    def fingerprint(self) -> str:
        kind = self.path.suffix in PACKED
        return f"{fingerprint(self.path)} {EXTENSION} {kind} {self.format.fingerprint()} {self.bad.max_bad_rows}"

    def report(self) -> list[str]:
        return self.remarks + self.bad.report(self.path)


def sparse_corpus(name: str, files: dict[str, Path], format: SparseFormat, max_bad_rows: int) -> Corpus:
    bad, remarks = BadRows(max_bad_rows), {"train": format.labels.report + format.features.report}  # once is enough
    sources: dict[str, Source] = {
        split: SparseSource(path, format, bad, remarks.get(split, [])) for split, path in files.items()
    }
    return Corpus(name, sources, has_features=True)


class SparseFiles(TextDataModule):
    """Your own corpus of features: a header `rows features labels`, then `label,label feature:value ...`; also packed.

    Args:
        train: training documents.
        val: validation documents; by default part of the training documents is split off.
        test: test documents.
        labels: file with the name of a label on each line; by default `labels.txt` beside the training documents, and
            the numbers where there is none.
        features: likewise the names of features, `features.txt` by default.
        name: what to call the corpus; by default its folder's name.
    """

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        labels: str | None = None,
        features: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.files = {"train": train, "val": val, "test": test, "labels": labels, "features": features}
        self.given_name = name

    def find_corpus(self) -> Corpus:
        found: dict[str, Path] = {}
        for option, given in self.files.items():
            if given is not None:
                path = find_file(given)
                if path is None:
                    raise UserError(f"no such file: {given} (--data.{option}), nor there under $ZOO_DATA")
                found[option] = path
        names = [found.pop(option, None) for option in ("labels", "features")]
        name = self.given_name or found["train"].resolve().parent.name or "corpus"
        return sparse_corpus(name, found, SparseFormat.beside(found["train"], *names), self.max_bad_rows)
