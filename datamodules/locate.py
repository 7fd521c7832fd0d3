"""From a path, or from a corpus, to documents: what commands on files share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from datamodules.errors import UserError
from datamodules.prepare import Corpus, Source
from datamodules.readers import (
    READERS,
    Document,
    Format,
    Reader,
    Rows,
    decompressed,
    read_documents,
    unpacked_name,
    user_errors,
)
from datamodules.text import SUFFIXES as TEXT_SUFFIXES
from datamodules.text import FileSource, file_corpus, files_in
from datamodules.xmc import EXTENSION, SparseFormat, SparseSource, parse_header, sparse_corpus
from datamodules.xmc import SUFFIXES as SPARSE_SUFFIXES

ANY_NUMBER = sys.maxsize  # of bad rows: they are counted, and stop nothing
SUFFIXES = list(dict.fromkeys([*TEXT_SUFFIXES, *SPARSE_SUFFIXES]))


def corpus_at(path: Path, format: Format, max_bad_rows: int = ANY_NUMBER) -> Corpus:
    """The splits in a folder, or one file as `train`."""
    if path.is_dir():
        files = files_in(path, SUFFIXES)
        if not files:
            raise UserError(f"{path} has no training file: expected train.jsonl, train.xmc.gz, ...")
    elif path.exists():
        files = {"train": path}
    else:
        raise UserError(f"no such file or folder: {path}")
    name = path.resolve().name
    kinds = {split: is_sparse(file) for split, file in files.items()}
    if len(set(kinds.values())) > 1:
        one = next(file for split, file in files.items() if kinds[split])
        raise UserError(f"{path}: {one.name} has features and other files have texts: keep one kind in a folder")
    if kinds["train"]:
        return sparse_corpus(name, files, SparseFormat.beside(files["train"]), max_bad_rows)
    return file_corpus(name, files, format, max_bad_rows)


def is_sparse(path: Path) -> bool:
    """Whether a file has features: by its ending, or as a `.txt` that begins with three numbers."""
    kind = unpacked_name(path).suffix
    return kind == EXTENSION or (kind == ".txt" and header_of(path) is not None)


def header_of(path: Path) -> tuple[int, int, int] | None:
    """Numbers of rows, features and labels at the beginning of a sparse file."""
    with user_errors(path), path.open("rb", buffering=0) as file, decompressed(file, path) as stream:
        line = stream.readline()
    return None if b"\t" in line else parse_header(line)


class LineReader:
    """A reader that knows the line of the row that it gave last."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.line = reader, 0

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> Rows:
        for line, row in self.reader(stream, path, format):
            self.line = line
            yield line, row


def numbered(source: Source, progress: Callable[[int], None]) -> Iterator[tuple[int, Document]]:
    """Documents with the line (in parquet the row) that each begins on, or its number where it is of no file."""
    if isinstance(source, FileSource):
        reader, format = READERS.get(unpacked_name(source.path).suffix), source.format
    elif isinstance(source, SparseSource):
        reader, format = source.format.rows, Format()
    else:
        reader = None
    if reader is None:  # for whoever reads it to refuse
        yield from enumerate(source.read(progress), 1)
        return
    lines = LineReader(reader)
    for document in read_documents(source.path, format, source.bad, progress, lines.rows):  # type: ignore[attr-defined]
        yield lines.line, document
