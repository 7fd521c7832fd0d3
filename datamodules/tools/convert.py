"""Streaming conversion of corpus files between formats."""

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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamodules.corpora.sparse_files import EXTENSION, FEATURES, LABELS, Names, SparseFormat, is_feature
from datamodules.prepare.corpus import Corpus, Source
from datamodules.prepare.file_source import FileSource
from datamodules.prepare.opening import DECOMPRESSORS, extension_of
from datamodules.prepare.readers import ROWS_PER_PROGRESS, Document
from datamodules.prepare.tokens import normalize
from datamodules.prepare.vocabulary import WORD, parse_feature
from datamodules.tools.locate import header_of
from zoo.core.console import progress_bar
from zoo.core.errors import UserError
from zoo.core.files import atomic_write

COMPRESSORS: dict[str, Callable[[IO[bytes]], Any]] = {
    # without name and time, so that the output is reproducible
    ".gz": lambda file: gzip.GzipFile("", "wb", 6, file, mtime=0),
    ".bz2": lambda file: bz2.BZ2File(file, "wb"),
}
SCHEMA = pa.schema({"id": pa.string(), "text": pa.string(), "labels": pa.list_(pa.string())})
BREAKS = re.compile(r"[\t\r\n]")  # column and line separators
ENDINGS = "its extension must be .jsonl, .txt or .xmc, each also with .gz or .bz2, or .parquet"


@dataclass
class Converter:
    """Converter of the splits of a corpus; extensions determine the formats, and files are written atomically."""

    label_sep: str = ","  # in .txt files
    features: bool = False  # texts are `name:value name:value`
    overwrite: bool = False
    remarks: Counter[str] = field(default_factory=Counter)  # numbers of documents by remark

    def convert(self, corpus: Corpus, targets: dict[str, Path]) -> list[str]:
        """Write the target file of each split, and return remarks for the user."""
        if not self.label_sep or BREAKS.search(self.label_sep):
            raise UserError("`target_label_sep` must not be empty or contain a tab or a line break")
        for path in targets.values():
            self._check_target(path)
        lines = []
        pending = dict(targets)
        for split, path in targets.items():
            self.remarks.clear()
            del pending[split]
            with write_errors(path):
                self._convert(corpus, split, path, set(pending.values()))
            lines += [f"{path}: {count:,} {line}" for line, count in self.remarks.items() if count]
            lines += corpus.sources[split].report()
        return lines

    def _check_target(self, path: Path) -> None:
        check_ending(path)
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"cannot write {path}: not a file in an existing folder")
        if path.exists() and not self.overwrite:
            raise UserError(f"{path} already exists; replace it with `overwrite=True`")

    def _convert(self, corpus: Corpus, split: str, path: Path, pending: set[Path]) -> None:
        source = corpus.sources[split]
        with progress_bar(f"Converting {split}") as bar, atomic_write(path) as aside:
            documents = source.read(bar(source.size))
            if extension_of(path) == EXTENSION:
                sparse = SparseTarget.beside(path, source, pending, self.features or corpus.has_features)
                self.remarks.update(sparse.write(aside, documents))
            else:
                WRITERS[extension_of(path)](self, aside, documents)

    def _write_json(self, path: Path, documents: Iterable[Document]) -> None:
        with compressed(path) as file:
            for document in documents:
                row: dict[str, Any] = {"id": document.id} if document.id else {}
                row |= {"text": document.text, "labels": document.labels}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def _write_lines(self, path: Path, documents: Iterable[Document]) -> None:
        with compressed(path) as file:
            for document in documents:
                for label in document.labels:
                    self._check_label(label)
                columns = [document.id, self.label_sep.join(document.labels), document.text]
                line = "\t".join(BREAKS.sub(" ", column) for column in columns).encode()
                self.remarks["documents contained tabs or line breaks, which were replaced by spaces"] += bool(
                    BREAKS.search(document.text) or BREAKS.search(document.id)
                )
                if line.isspace():
                    self.remarks["documents without id, labels and text were left out"] += 1
                else:
                    file.write(line + b"\n")

    def _check_label(self, label: str) -> None:
        if self.label_sep in label:
            raise UserError(f"label {label!r} contains {self.label_sep!r}: choose another `target_label_sep`")
        if BREAKS.search(label):
            raise UserError(f"label {label!r} contains a tab or a line break, which .txt files cannot represent")

    def _write_parquet(self, path: Path, documents: Iterable[Document]) -> None:
        rows = iter(documents)
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            while chunk := list(islice(rows, ROWS_PER_PROGRESS)):
                columns = [[d.id or None for d in chunk], [d.text for d in chunk], [d.labels for d in chunk]]
                writer.write_table(pa.table(columns, schema=SCHEMA))


WRITERS: dict[str, Any] = dict.fromkeys([".jsonl", ".ndjson", ".json"], Converter._write_json)
WRITERS |= {".txt": Converter._write_lines, ".parquet": Converter._write_parquet}


def check_ending(path: Path) -> None:
    kind = extension_of(path)
    if kind not in {*WRITERS, EXTENSION} or (kind == ".parquet" and path.suffix in DECOMPRESSORS):
        raise UserError(f"cannot write {path}: {ENDINGS}")


def files_for(corpus: Corpus, folder: Path, ending: str) -> dict[str, Path]:
    """Create a folder, and return the path of each split in it."""
    files = {split: folder / f"{split}.{ending.lstrip('.')}" for split in corpus.sources}
    for path in files.values():
        check_ending(path)
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return files


class NameFile(dict[str, int]):
    """Numbers of label or feature names, which are stored in a file with one name per line."""

    def __init__(self, what: str, path: Path, names: list[str], exists: bool = False) -> None:
        super().__init__({name: number for number, name in enumerate(names)})
        self.what, self.path, self.start, self.exists = what, path, len(names), exists

    @classmethod
    def of(cls, what: str, path: Path, source: Source, keep: bool) -> NameFile:
        """Start with the names of the existing file, if it is to be kept, or else with those of the source."""
        if keep and path.is_file():
            found = Names.read(what, path)
            if found.report:
                raise UserError(f"{found.report[0]}: convert into another folder")
            return cls(what, path, found.names, exists=True)
        if not isinstance(source, FileSource) or not isinstance(source.layout, SparseFormat):
            return cls(what, path, [])
        names = (source.layout.labels if what == "label" else source.layout.features).names
        size = (header_of(source.path) or (0, 0, 0))[1 if what == "feature" else 2]
        return cls(what, path, names or [str(number) for number in range(size)])

    def number(self, name: str) -> int:
        """Return the number of a name; a new name gets the next one."""
        if name not in self and ("\n" in name if self.what == "label" else not is_feature(name)):
            wrong = "a line break" if self.what == "label" else "a colon or a space, or is reserved"
            raise UserError(f"{self.what} {name!r} contains {wrong}: {self.path.name} cannot represent it")
        return self.setdefault(name, len(self))

    def save(self) -> None:
        if len(self) == self.start and self.exists:
            return
        with atomic_write(self.path) as aside:
            aside.write_text("".join(f"{name}\n" for name in self), "utf8", newline="\n")


@dataclass
class SparseTarget:
    """Writer of a sparse file, with the names of labels and features in files that all splits of a folder share."""

    path: Path
    labels: NameFile
    features: NameFile
    has_features: bool  # texts are `name:value name:value`; otherwise words are counted
    keeps_features: bool  # unknown features are left out

    @classmethod
    def beside(cls, path: Path, source: Source, pending: set[Path], has_features: bool) -> SparseTarget:
        """Keep existing files of names if sparse files of the folder that are not to be replaced refer to them."""
        labels, features = path.parent / LABELS, path.parent / FEATURES
        others = [file.name for file in siblings(path) if file not in {getattr(source, "path", None), *pending}]
        if others and not (labels.is_file() and features.is_file()):
            missing = features.name if labels.is_file() else labels.name
            raise UserError(f"{path.parent} has {others[0]} but no {missing}: convert into another folder")
        keep = bool(others) or not path.exists()
        found = NameFile.of("label", labels, source, keep), NameFile.of("feature", features, source, keep)
        return cls(path, *found, has_features, found[1].exists)

    def write(self, place: Path, documents: Iterable[Document]) -> Counter[str]:
        """Write the file and its names. Rows go to a temporary file first, because the header counts them."""
        remarks = Counter[str]()
        rows = 0
        with tempfile.TemporaryFile(dir=place.parent) as body:
            with compressing(body, place.suffix) as file:
                for document in documents:
                    file.write(self._row(document, remarks))
                    rows += 1
            body.seek(0)
            with place.open("wb") as whole:
                with compressing(whole, place.suffix) as file:
                    file.write(f"{rows} {len(self.features)} {len(self.labels)}\n".encode())
                shutil.copyfileobj(body, whole)  # concatenated gzip or bzip2 streams are a valid file
        if self.labels.exists and (new := len(self.labels) - self.labels.start):
            remarks[f"new labels were added to {self.labels.path.name}"] = new
        self.features.save()
        self.labels.save()
        return remarks

    def _row(self, document: Document, remarks: Counter[str]) -> bytes:
        remarks[f"documents had ids, which {EXTENSION} files cannot represent"] += bool(document.id)
        known = [(self._feature(name), value) for name, value in self._pairs(document.text)]
        unknown = sum(number is None for number, _ in known)
        what = "features" if self.has_features else "words"
        remarks[f"{what} of documents were not in {self.features.path.name} and were left out"] += unknown
        labels = ",".join(str(number) for number in sorted(self.labels.number(name) for name in document.labels))
        kept = [(number, value) for number, value in known if number is not None]
        if not self.has_features:
            kept.sort()
        return " ".join([labels, *(f"{number}:{value}" for number, value in kept)]).encode() + b"\n"

    def _feature(self, name: str) -> int | None:
        return self.features.get(name) if self.keeps_features else self.features.number(name)

    def _pairs(self, text: str) -> Iterable[tuple[str, str]]:
        """Features and their values, or words and their counts."""
        if not self.has_features:
            return [(word, str(count)) for word, count in Counter(WORD.findall(normalize(text))).items()]
        values = [(parse_feature(token)[0], token.rpartition(":")) for token in text.split()]
        return [(name, value if colon else "1") for name, (_, colon, value) in values]


def siblings(path: Path) -> list[Path]:
    """Other sparse files in the folder of a file."""
    files = [file for file in sorted(path.parent.iterdir()) if not file.name.startswith(".") and file != path]
    return [file for file in files if extension_of(file) == EXTENSION]


def compressing(file: IO[bytes], suffix: str) -> AbstractContextManager[IO[bytes]]:
    """Compress what is written, if the suffix says so."""
    stream: AbstractContextManager[IO[bytes]] = COMPRESSORS.get(suffix, nullcontext)(file)
    return stream


@contextmanager
def compressed(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file, compressing(file, path.suffix) as stream:
        yield stream


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing a file into a one-line `UserError`; the command line reports a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
