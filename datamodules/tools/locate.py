"""Find the corpus at a path, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from datamodules.corpora.sparse_files import EXTENSION, LONGEST_HEADER, SparseFormat, parse_header, sparse_corpus
from datamodules.corpora.sparse_files import SUFFIXES as SPARSE_SUFFIXES
from datamodules.corpora.text_files import SUFFIXES as TEXT_SUFFIXES
from datamodules.corpora.text_files import files_in
from datamodules.prepare.corpus import Corpus, Source
from datamodules.prepare.file_source import FileSource, file_corpus
from datamodules.prepare.opening import extension_of, opened
from datamodules.prepare.readers import Document, Format
from zoo.core.errors import LARGEST, UserError

ANY_NUMBER = LARGEST  # of bad rows: they are counted, but never an error
SUFFIXES = list(dict.fromkeys([*TEXT_SUFFIXES, *SPARSE_SUFFIXES]))


def corpus_at(path: Path, format: Format, max_bad_rows: int = ANY_NUMBER) -> Corpus:
    """Open the splits in a folder, or a single file as `train`."""
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
        raise UserError(f"{path}: {one.name} contains features, other files contain texts: keep one kind in a folder")
    if kinds["train"]:
        return sparse_corpus(name, files, SparseFormat.beside(files["train"]), max_bad_rows)
    return file_corpus(name, files, format, max_bad_rows)


def is_sparse(path: Path) -> bool:
    """Whether a file contains features: `.xmc`, or `.txt` with a header of three numbers."""
    kind = extension_of(path)
    return kind == EXTENSION or (kind == ".txt" and header_of(path) is not None)


def header_of(path: Path) -> tuple[int, int, int] | None:
    """Read the numbers of rows, features and labels from the header of a sparse file."""
    with opened(path) as stream:
        line = stream.readline(LONGEST_HEADER)
    return None if b"\t" in line else parse_header(line)


def numbered(source: Source, progress: Callable[[int], None]) -> Iterator[tuple[int, Document]]:
    """Yield documents with the line on which each starts; documents that are not from a file are counted."""
    return source.read_numbered(progress) if isinstance(source, FileSource) else enumerate(source.read(progress), 1)
