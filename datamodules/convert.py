"""Corpus files from one format to another, a document at a time."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamodules.errors import UserError
from datamodules.files import written_whole
from datamodules.locate import header_of
from datamodules.prepare import Corpus, Source
from datamodules.progress import progress_bar
from datamodules.readers import PACKED, ROWS_PER_PROGRESS, Document, unpacked_name
from datamodules.tokens import normal
from datamodules.vocab import WORD, parse_feature
from datamodules.xmc import EXTENSION, FEATURES, LABELS, Names, SparseSource, is_feature

PACKERS: dict[str, Callable[[IO[bytes]], Any]] = {
    # without name and time, so that the same documents make the same file
    ".gz": lambda file: gzip.GzipFile("", "wb", 6, file, mtime=0),
    ".bz2": lambda file: bz2.BZ2File(file, "wb"),
}
SCHEMA = pa.schema({"id": pa.string(), "text": pa.string(), "labels": pa.list_(pa.string())})
BREAKS = re.compile(r"[\t\r\n]")  # what ends a column or a line
ENDINGS = "its ending must be .jsonl, .txt or .xmc, each also with .gz or .bz2, or .parquet"


@dataclass
class Converter:
    """Writes the splits of a corpus in the formats that the names of the files say, each whole or not at all."""

    label_sep: str = ","  # in .txt
    features: bool = False  # texts are `name:value name:value`
    overwrite: bool = False
    remarks: Counter[str] = field(default_factory=Counter)  # lines for a person, with how many documents they concern

    def convert(self, corpus: Corpus, targets: dict[str, Path]) -> list[str]:
        """Returns what a person should know, line by line."""
        if not self.label_sep or BREAKS.search(self.label_sep):
            raise UserError("--target_label_sep must be something, and no tab or line break, which end columns")
        for path in targets.values():
            self._check_target(path)
        lines = []
        to_come = dict(targets)
        for split, path in targets.items():
            self.remarks.clear()
            del to_come[split]
            with writing(path):
                self._convert(corpus, split, path, set(to_come.values()))
            lines += [f"{path}: {count:,} {line}" for line, count in self.remarks.items() if count]
            lines += corpus.sources[split].report()
        return lines

    def _check_target(self, path: Path) -> None:
        check_ending(path)
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"cannot write {path}: not a file in an existing folder")
        if path.exists() and not self.overwrite:
            raise UserError(f"{path} is there already: --overwrite replaces it")

    def _convert(self, corpus: Corpus, split: str, path: Path, to_come: set[Path]) -> None:
        source = corpus.sources[split]
        with progress_bar(f"Converting {split}") as bar, written_whole(path) as aside:
            documents = source.read(bar(source.size))
            if unpacked_name(path).suffix == EXTENSION:
                sparse = SparseTarget.beside(path, source, to_come, self.features or corpus.has_features)
                self.remarks.update(sparse.write(aside, documents))
            else:
                WRITERS[unpacked_name(path).suffix](self, aside, documents)

    def _write_json(self, path: Path, documents: Iterable[Document]) -> None:
        with packed(path) as file:
            for document in documents:
                row: dict[str, Any] = {"id": document.id} if document.id else {}
                row |= {"text": document.text, "labels": document.labels}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def _write_lines(self, path: Path, documents: Iterable[Document]) -> None:
        with packed(path) as file:
            for document in documents:
                for label in document.labels:
                    self._check_label(label)
                columns = [document.id, self.label_sep.join(document.labels), document.text]
                line = "\t".join(BREAKS.sub(" ", column) for column in columns).encode()
                self.remarks["documents had tabs or line breaks, which are spaces now"] += bool(
                    BREAKS.search(document.text) or BREAKS.search(document.id)
                )
                if line.isspace():
                    self.remarks["documents without id, labels and text are left out: a blank line is none"] += 1
                else:
                    file.write(line + b"\n")

    def _check_label(self, label: str) -> None:
        if self.label_sep in label:
            raise UserError(f"label {label!r} contains {self.label_sep!r}: separate with another --target_label_sep")
        if BREAKS.search(label):
            raise UserError(f"label {label!r} contains a tab or a line break, which .txt cannot hold")

    def _write_parquet(self, path: Path, documents: Iterable[Document]) -> None:
        rows = iter(documents)
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            while chunk := list(islice(rows, ROWS_PER_PROGRESS)):
                columns = [[d.id or None for d in chunk], [d.text for d in chunk], [d.labels for d in chunk]]
                writer.write_table(pa.table(columns, schema=SCHEMA))


WRITERS: dict[str, Any] = dict.fromkeys([".jsonl", ".ndjson", ".json"], Converter._write_json)
WRITERS |= {".txt": Converter._write_lines, ".parquet": Converter._write_parquet}


def check_ending(path: Path) -> None:
    kind = unpacked_name(path).suffix
    if kind not in {*WRITERS, EXTENSION} or (kind == ".parquet" and path.suffix in PACKED):
        raise UserError(f"cannot write {path}: {ENDINGS}")


def files_for(corpus: Corpus, folder: Path, ending: str) -> dict[str, Path]:
    """A file for each split, in a folder that is made if it is not there."""
    files = {split: folder / f"{split}.{ending.lstrip('.')}" for split in corpus.sources}
    for path in files.values():
        check_ending(path)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return files


class Numbers(dict[str, int]):
    """Numbers of names, in the order in which they came; those of a file that is there come first."""

    def __init__(self, what: str, path: Path, names: list[str], is_there: bool = False) -> None:
        super().__init__({name: number for number, name in enumerate(names)})
        self.what, self.path, self.start, self.is_there = what, path, len(names), is_there

    @classmethod
    def of(cls, what: str, path: Path, source: Source, keep: bool) -> Numbers:
        """Those of a file beside the target, if it is to be kept, or else those that the source has."""
        if keep and path.is_file():
            found = Names.read(what, path)
            if found.report:
                raise UserError(f"{found.report[0]}: convert into another folder")
            return cls(what, path, found.names, is_there=True)
        if not isinstance(source, SparseSource):
            return cls(what, path, [])
        names = getattr(source.format, f"{what}s").names
        size = (header_of(source.path) or (0, 0, 0))[1 if what == "feature" else 2]
        return cls(what, path, names or [str(number) for number in range(size)])

    def number(self, name: str) -> int:
        """The one it has, or the next one, if its file can hold the name."""
        if name not in self and ("\n" in name if self.what == "label" else not is_feature(name)):
            wrong = "a line break" if self.what == "label" else "a colon, or is taken"
            raise UserError(f"{self.what} {name!r} contains {wrong}: {self.path.name} cannot hold it")
        return self.setdefault(name, len(self))

    def save(self) -> None:
        """Write the names one on each line, where not all of them are there."""
        if len(self) == self.start and self.is_there:
            return
        with written_whole(self.path) as aside:
            aside.write_text("".join(f"{name}\n" for name in self), "utf8", newline="\n")


@dataclass
class SparseTarget:
    """A sparse file with the names of its labels and features beside it, which all splits share."""

    path: Path
    labels: Numbers
    features: Numbers
    has_features: bool  # texts are `name:value name:value`; otherwise words are counted
    keeps_features: bool  # those that are known are all there are

    @classmethod
    def beside(cls, path: Path, source: Source, to_come: set[Path], has_features: bool) -> SparseTarget:
        """Names that other files there go by are kept; those of files that are replaced, or will be, are not."""
        labels, features = path.parent / LABELS, path.parent / FEATURES
        others = [file.name for file in siblings(path) if file not in {getattr(source, "path", None), *to_come}]
        if others and not (labels.is_file() and features.is_file()):
            missing = features.name if labels.is_file() else labels.name
            raise UserError(f"{path.parent} has {others[0]} but no {missing}: convert into another folder")
        keep = bool(others) or not path.exists()
        found = Numbers.of("label", labels, source, keep), Numbers.of("feature", features, source, keep)
        return cls(path, *found, has_features, found[1].is_there)

    def write(self, place: Path, documents: Iterable[Document]) -> Counter[str]:
        """The rows go aside, for the header says how many there are of everything."""
        remarks = Counter[str]()
        rows = 0
        with tempfile.TemporaryFile(dir=place.parent) as body:
            with packing(body, place.suffix) as file:
                for document in documents:
                    file.write(self._row(document, remarks))
                    rows += 1
            body.seek(0)
            with place.open("wb") as whole:
                with packing(whole, place.suffix) as file:
                    file.write(f"{rows} {len(self.features)} {len(self.labels)}\n".encode())
                shutil.copyfileobj(body, whole)  # packed parts one after the other are a packed file
        if self.labels.is_there and (new := len(self.labels) - self.labels.start):
            remarks[f"labels were new and are now in {self.labels.path.name}"] = new
        self._save_names()
        return remarks

    def _save_names(self) -> None:
        self.features.save()
        self.labels.save()

    def _row(self, document: Document, remarks: Counter[str]) -> bytes:
        remarks[f"documents had ids, which {EXTENSION} cannot hold"] += bool(document.id)
        pairs = self._pairs(document.text)
        known = [(self._feature(name), value) for name, value in pairs]
        unknown = sum(number is None for number, _ in known)
        remarks[f"{self._what} of documents were not in {self.features.path.name} and are left out"] += unknown
        labels = ",".join(str(number) for number in sorted(self.labels.number(name) for name in document.labels))
        kept = [(number, value) for number, value in known if number is not None]
        if not self.has_features:
            kept.sort()
        return " ".join([labels, *(f"{number}:{value}" for number, value in kept)]).encode() + b"\n"

    @property
    def _what(self) -> str:
        return "features" if self.has_features else "words"

    def _feature(self, name: str) -> int | None:
        return self.features.get(name) if self.keeps_features else self.features.number(name)

    def _pairs(self, text: str) -> Iterable[tuple[str, str]]:
        """Names and values of features, or words and how often they occur."""
        if not self.has_features:
            return [(word, str(count)) for word, count in Counter(WORD.findall(normal(text))).items()]
        values = [(parse_feature(token)[0], token.rpartition(":")) for token in text.split()]
        return [(name, value if colon else "1") for name, (_, colon, value) in values]


def siblings(path: Path) -> list[Path]:
    """Other sparse files of a folder."""
    files = [file for file in sorted(path.parent.iterdir()) if not file.name.startswith(".") and file != path]
    return [file for file in files if unpacked_name(file).suffix == EXTENSION]


@contextmanager
def packing(file: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    """What is written arrives packed, as the ending of the file's name says."""
    if suffix not in PACKERS:
        yield file
        return
    with PACKERS[suffix](file) as stream:
        yield stream


@contextmanager
def packed(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file, packing(file, path.suffix) as stream:
        yield stream


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be written; of a full disk the command line tells."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
