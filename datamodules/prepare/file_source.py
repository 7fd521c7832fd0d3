"""Splits of a corpus that are files: documents in one file, with labels in it or in a second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, Protocol

from datamodules.prepare.corpus import SPLITS, Corpus, Source
from datamodules.prepare.limits import Limits
from datamodules.prepare.opening import NOT_UTF8, RowError, limited_lines, opened
from datamodules.prepare.readers import BadRows, Document, Format, ParsedRow, ParsedRows, fingerprint, read_numbered


class Layout(Protocol):
    """Reader of files whose extension does not determine how they are read."""

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> ParsedRows: ...

    def fingerprint(self) -> str:
        """Everything that the documents depend on besides the file itself."""


class FileSource:
    """Documents of one file.

    Args:
        path: file to read.
        bad: collects unreadable rows of all files of the corpus.
        format: column names.
        layout: how to read the file; by default its extension decides.
        remarks: lines for the report on the corpus.
    """

    def __init__(
        self,
        path: Path,
        bad: BadRows,
        format: Format | None = None,
        layout: Layout | None = None,
        remarks: list[str] | None = None,
    ) -> None:
        self.path, self.bad, self.layout, self.remarks = path, bad, layout, remarks or []
        self.format = format or Format()
        self.size = path.stat().st_size

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        return (document for _, document in self.read_numbered(progress))

    def read_numbered(self, progress: Callable[[int], None]) -> Iterator[tuple[int, Document]]:
        """Yield documents with the line (the row in parquet files) on which each starts."""
        reader = None if self.layout is None else self.layout.rows
        return read_numbered(self.path, self.format, self.bad, progress, reader)

    def fingerprint(self) -> str:
        suffixes = "".join(self.path.suffixes[-2:])
        layout = f"{suffixes} {self.format}" if self.layout is None else self.layout.fingerprint()
        return f"{fingerprint(self.path)} {layout} {self.bad.max_bad_rows} {self.format.limits}"

    def report(self) -> list[str]:
        return self.remarks + self.bad.report(self.path)


def file_corpus(name: str, files: dict[str, Path], format: Format, max_bad_rows: int) -> Corpus:
    """Build a corpus of text files, one for each split."""
    bad = BadRows(max_bad_rows)
    return Corpus(name, {split: FileSource(path, bad, format) for split, path in files.items()})


class PairedLabels:
    """Layout with one text per line, and the labels of each line, separated by spaces, in a second file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
        with opened(self.path, format.limits) as labels:
            lines = (limited_lines(file, format.limits) for file in (stream, labels))
            for number, (text, names) in enumerate(zip_longest(*lines), 1):
                if text is None or names is None:
                    yield number, RowError(f"{path.name} and {self.path.name} differ in their number of lines")
                    return
                yield number, self._row(text, names, format)

    def _row(self, text: bytes | RowError, names: bytes | RowError, format: Format) -> ParsedRow:
        for line in (text, names):
            if isinstance(line, RowError):
                return line
        assert isinstance(text, bytes)
        assert isinstance(names, bytes)
        try:
            return {format.text_column: text.decode().strip(), format.label_column or "": names.decode().split()}
        except UnicodeDecodeError:
            return RowError(NOT_UTF8)

    def fingerprint(self) -> str:
        return f"{fingerprint(self.path)} paired"


def paired_corpus(name: str, folder: Path, max_bad_rows: int, limits: Limits) -> Corpus | None:
    """Build the corpus of `text_train`, `label_train`, ... in a folder; None if the training files are missing."""
    bad = BadRows(max_bad_rows)
    sources: dict[str, Source] = {}
    for split in SPLITS:
        text, labels = folder / f"text_{split}", folder / f"label_{split}"
        if text.is_file() and labels.is_file():
            sources[split] = FileSource(text, bad, Format(limits=limits), PairedLabels(labels))
    return Corpus(name, sources) if "train" in sources else None
