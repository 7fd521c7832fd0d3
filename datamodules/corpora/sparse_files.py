"""Corpora of sparse features instead of texts, in the format of the Extreme Classification Repository."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from datamodules.base import TextDataModule
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.file_source import FileSource
from datamodules.prepare.find_files import find_files
from datamodules.prepare.limits import DEFAULT_LIMITS, Limits
from datamodules.prepare.opening import DECOMPRESSORS, NOT_UTF8, RowError, limited_lines, opened
from datamodules.prepare.readers import READERS, BadRows, Format, ParsedRow, ParsedRows
from datamodules.prepare.vocabulary import LARGEST, PAD, UNK, VALUES
from zoo.core.errors import UserError

EXTENSION = ".xmc"
SUFFIXES = [kind + packed for kind in (EXTENSION, ".txt") for packed in ("", *DECOMPRESSORS)]  # in a corpus folder
LABELS, FEATURES = "labels.txt", "features.txt"  # optional files next to the data, with one name per line
LONGEST_HEADER = 1000  # bytes
HEADER = "the first line must be three numbers: rows, features and labels"


@dataclass
class Names:
    """Names of labels or features by number. Without a file of names, the numbers themselves are used."""

    what: str  # "label" or "feature"
    path: Path | None = None
    names: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, what: str, path: Path | None) -> Names:
        """Read a file of names. Names that are not unique or not valid are ignored and reported."""
        if path is None:
            return cls(what)
        with opened(path) as stream:
            lines = list(limited_lines(stream, DEFAULT_LIMITS))
        for line in lines:
            if isinstance(line, RowError):
                raise UserError(f"{path}: a line is {line}")
        try:
            names = [line.decode().strip() for line in lines if isinstance(line, bytes)]
        except UnicodeDecodeError:
            raise UserError(f"{path}: {NOT_UTF8}") from None
        if len(set(names)) == len(names) and "" not in names and (what == "label" or all(map(is_feature, names))):
            return cls(what, path, names)
        wrong = "repeat or are empty" if what == "label" else "repeat, are empty or contain spaces or colons"
        return cls(what, report=[f"{path}: some names {wrong}, so {what}s are named by their numbers"])

    def check(self, path: Path, size: int) -> None:
        """Raise `UserError` if there are fewer names than labels or features in the file at `path`."""
        if self.names and len(self.names) < size:
            raise UserError(
                f"{self.path} has {len(self.names):,} names, but {path} has {size:,} {self.what}s: "
                f"set `{self.what}s` to the right file"
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
    """Whether `name:value` can be parsed unambiguously."""
    return ":" not in name and len(name.split()) == 1 and name not in (PAD, UNK, VALUES)


@dataclass
class SparseFormat:
    """Layout of sparse files: a header with the numbers of rows, features and labels, then a line per document.

    A line is `label,label feature:value feature:value`.
    """

    labels: Names
    features: Names

    @classmethod
    def beside(cls, path: Path, labels: Path | None = None, features: Path | None = None) -> SparseFormat:
        """Read names from the given files, or from `labels.txt` and `features.txt` in the folder of `path`."""
        places = {"label": labels or path.parent / LABELS, "feature": features or path.parent / FEATURES}
        found = {what: Names.read(what, place if place.is_file() else None) for what, place in places.items()}
        return cls(found["label"], found["feature"])

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
        """Yield rows as the readers of other formats do; an empty line is a document without labels and features."""
        header = parse_header(stream.readline(LONGEST_HEADER))
        size, num_features, num_labels = header or (None, None, None)
        if header is None:
            yield 1, RowError(HEADER)
        else:
            self.features.check(path, header[1])
            self.labels.check(path, header[2])
        count = 0
        for number, line in enumerate(limited_lines(stream, format.limits), 2):
            if isinstance(line, bytes) and line.isspace() and (size is None or count >= size):
                continue  # trailing blank lines
            count += 1
            yield number, line if isinstance(line, RowError) else self._row(line, num_features, num_labels, format)
        if size is not None and count != size:
            yield count + 1, RowError(f"the header announces {size:,} rows, the file has {count:,}")

    def _row(self, line: bytes, num_features: int | None, num_labels: int | None, format: Format) -> ParsedRow:
        try:
            labels, pairs = split_line(line.decode())
            names = [self.labels.name(label, num_labels) for label in labels]
            text = " ".join(f"{self.features.name(i, num_features)}:{value}" for i, value in pairs)
        except UnicodeDecodeError:
            return RowError(NOT_UTF8)
        except RowError as error:
            return error
        return {format.text_column: text, format.label_column or "": names}

    def fingerprint(self) -> str:
        return f"{EXTENSION} {self.labels.fingerprint()} {self.features.fingerprint()}"


def parse_header(line: bytes) -> tuple[int, int, int] | None:
    """Return the numbers of rows, features and labels; None if the line is no header."""
    fields = line.split()
    if len(fields) != 3 or not all(number.isdigit() for number in fields):
        return None
    rows, features, labels = map(int, fields)
    return rows, features, labels


def split_line(line: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Split a line into label numbers and (feature number, value) pairs, all as strings."""
    first, *others = line.split() or [""]
    if ":" in first or line[0].isspace():  # a line without labels should start with a space, but many files omit it
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


def _rows(stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
    return SparseFormat.beside(path).rows(stream, path, format)


READERS[EXTENSION] = _rows  # so that `read_documents` reads sparse files too


def sparse_corpus(
    name: str, files: dict[str, Path], layout: SparseFormat, max_bad_rows: int, limits: Limits = DEFAULT_LIMITS
) -> Corpus:
    """Build a corpus of sparse files, one for each split."""
    bad, format = BadRows(max_bad_rows), Format(limits=limits)
    remarks = {"train": layout.labels.report + layout.features.report}  # report them once, not for each split
    return Corpus(
        name,
        {split: FileSource(path, bad, format, layout, remarks.get(split)) for split, path in files.items()},
        has_features=True,
    )


class SparseFiles(TextDataModule):
    """Your own corpus of sparse features.

    Files start with a header `rows features labels`, followed by lines `label,label feature:value ...`. They may be
    compressed as .gz or .bz2.

    Args:
        train: file of training documents.
        val: file of validation documents; by default a part of the training documents is split off.
        test: file of test documents.
        labels: file with one label name per line; by default `labels.txt` next to the training file. Without it,
            labels are named by their numbers.
        features: file with one feature name per line; by default `features.txt` next to the training file.
        name: name of the corpus; by default that of its folder.
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
        found = find_files(self.files)
        names = [found.pop(option, None) for option in ("labels", "features")]
        name = self.given_name or found["train"].resolve().parent.name or "corpus"
        layout = SparseFormat.beside(found["train"], *names)
        return sparse_corpus(name, found, layout, self.max_bad_rows, self.limits)
