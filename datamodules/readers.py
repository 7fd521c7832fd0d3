"""Corpus files in, documents out: one row at a time, so memory does not grow with the file."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamodules.errors import UserError

ROWS_PER_PROGRESS = 1_000
ROWS_TO_FIND_COLUMNS = 100  # a JSON line may lack a column; this many without it mean that the name is wrong
SHOWN_BAD_ROWS = 5
PACKED: dict[str, Callable[[Any], Any]] = {".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File}
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Document:
    """One labelled text of the corpus."""

    id: str  # empty where the corpus has none
    text: str
    labels: list[str]


@dataclass
class Format:
    """How a row is laid out: the names of its columns, and what separates labels that are written as one string."""

    text_column: str = "text"
    label_column: str | None = "labels"  # None: rows have no labels
    id_column: str = "id"
    label_sep: str | None = None
    options: str = field(default="--data.", repr=False)  # how options begin in messages; no part of cache keys


@dataclass
class BadRows:
    """Counts the rows that could not be read and tolerates `max_bad_rows` of them over all files together."""

    max_bad_rows: int = 0
    counts: dict[Path, int] = field(default_factory=dict)
    first: dict[Path, list[tuple[int, str]]] = field(default_factory=dict)  # line and reason

    def start(self, path: Path) -> None:
        """Begin a file; what an earlier pass over it recorded is forgotten."""
        self.counts[path], self.first[path] = 0, []

    def add(self, path: Path, line: int, reason: str) -> None:
        self.counts[path] += 1
        if self.counts[path] <= SHOWN_BAD_ROWS:
            self.first[path].append((line, reason))

    def check(self, path: Path) -> None:
        """Raise at the end of a file with bad rows if there are now more than tolerated."""
        total = sum(self.counts.values())
        if self.counts[path] and total > self.max_bad_rows:
            raise UserError(f"{self._summary(path)}; fix them or allow some with --data.max_bad_rows={total}")

    def report(self, path: Path) -> list[str]:
        """A line, if the file has bad rows."""
        return [self._summary(path)] if self.counts.get(path) else []

    def _summary(self, path: Path) -> str:
        count, first = self.counts[path], self.first[path]
        plural, unit = "s" if count > 1 else "", "row" if _extension(path) == ".parquet" else "line"
        where = f"{'first ' if count > len(first) else ''}at {unit}{plural} {', '.join(str(line) for line, _ in first)}"
        return f"{path}: {count} bad row{plural}, {where} ({unit} {first[0][0]}: {first[0][1]})"


def read_documents(
    path: Path, format: Format, bad: BadRows, progress: Progress | None = None, reader: Reader | None = None
) -> Iterator[Document]:
    """Yield the documents of one file; `progress` is told how many more of the file's bytes have been read.

    The file's extension says how to read it, where no `reader` is given.
    """
    bad.start(path)
    with user_errors(path), path.open("rb", buffering=0) as file, decompressed(file, path) as stream:
        size, reported = path.stat().st_size, 0
        extension = _extension(path)
        if (reader := reader or READERS.get(extension)) is None:
            raise UserError(
                f"{path}: unknown extension; supported are {', '.join(READERS)}, each also with {' or '.join(PACKED)}"
            )
        if extension in {".csv", ".tsv", ".txt"}:
            format = replace(format, label_sep=format.label_sep or ",")
        for number, (line, row) in enumerate(reader(stream, path, format) if stream.peek(1) else (), 1):
            if progress and number % ROWS_PER_PROGRESS == 0:
                progress(max(file.tell() - reported, 0))  # a parquet reader may jump back
                reported = max(file.tell(), reported)
            try:
                yield document_of(row, format)
            except RowError as error:
                bad.add(path, line, str(error))
        if progress:
            progress(size - reported)
    bad.check(path)


def fingerprint(path: Path) -> str:
    """A hash of the file's content."""
    with user_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


class RowError(Exception):
    """Why one row is not a document."""


Row = dict[str, Any] | RowError
Rows = Iterator[tuple[int, Row]]  # with the line that a row starts on
Reader = Callable[[IO[bytes], Path, Format], Rows]


def document_of(row: Row, format: Format) -> Document:
    if isinstance(row, RowError):
        raise row
    for column in (format.text_column, format.label_column):
        if column is not None and column not in row:
            raise RowError(f"no column {column!r}")
    text, id = row[format.text_column], row.get(format.id_column)
    if not isinstance(text, str):
        raise RowError(f"{format.text_column!r} is {_type_name(text)}, not a string")
    labels = [] if format.label_column is None else _labels(row[format.label_column], format)
    return Document("" if id is None else str(id), text, labels)


def _labels(value: Any, format: Format) -> list[str]:
    if format.label_sep and isinstance(value, str | None):
        value = (value or "").split(format.label_sep)
    elif not isinstance(value, list):
        raise RowError(
            f"{format.label_column!r} is {_type_name(value)}, not a list (a string needs {format.options}label_sep)"
        )
    if wrong := [label for label in value if not isinstance(label, str | int) or isinstance(label, bool)]:
        raise RowError(f"a label is {_type_name(wrong[0])}, not a string or an integer")
    return [name for name in dict.fromkeys(str(label).strip() for label in value) if name]


def _type_name(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _json_rows(stream: IO[bytes], path: Path, format: Format) -> Rows:
    rows = _line_rows(stream, _parse_json)
    head = list(islice(rows, ROWS_TO_FIND_COLUMNS))
    if objects := [row for _, row in head if isinstance(row, dict)]:
        _require_columns(path, format, chain.from_iterable(objects))
    return chain(head, rows)


def _parse_json(line: str) -> Row:
    try:
        row = json.loads(line)
        if "\\ud" in line or "\\uD" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair parses, but no tokenizer takes it
    except (ValueError, RecursionError) as error:
        return RowError(f"broken JSON: {getattr(error, 'msg', error)}")
    return row if isinstance(row, dict) else RowError("not a JSON object")


def _txt_rows(stream: IO[bytes], path: Path, format: Format) -> Rows:
    def parse(line: str) -> Row:
        fields = line.removesuffix("\n").removesuffix("\r").split("\t", 2)
        if len(fields) < 3:
            return RowError("fewer than 2 tabs; a line is id<TAB>labels<TAB>text")
        return dict(zip((format.id_column, format.label_column or "", format.text_column), fields, strict=True))

    return _line_rows(stream, parse)


def _line_rows(stream: IO[bytes], parse: Callable[[str], Row]) -> Rows:
    for number, line in enumerate(stream, 1):
        if not line.isspace():
            try:
                yield number, parse(line.decode())
            except UnicodeDecodeError:
                yield number, RowError("invalid UTF-8")


def _csv_rows(stream: IO[bytes], path: Path, format: Format) -> Rows:
    csv.field_size_limit(2**31 - 1)  # what a C long holds on every platform
    lines = (line.decode(errors="surrogateescape") for line in stream)  # a bad byte must spoil its own row only
    reader = csv.reader(lines, delimiter="\t" if _extension(path) == ".tsv" else ",", strict=True)
    if header := next(filter(None, reader), []):
        _require_columns(path, format, header)
        wanted = (format.id_column, format.text_column, format.label_column)
        if twice := [name for name in wanted if name is not None and header.count(name) > 1]:
            raise UserError(f"{path}: the header has {twice[0]!r} more than once: rename one of the columns")
    while True:
        line = reader.line_num + 1
        try:
            if fields := next(reader):  # else a blank line
                yield line, _csv_row(header, fields)
        except StopIteration:
            return
        except UnicodeEncodeError:
            yield line, RowError("invalid UTF-8")
        except csv.Error as error:  # being strict also shows an open quote, which would swallow the rest unseen
            yield line, RowError(f"broken csv: {error}")


def _csv_row(header: list[str], fields: list[str]) -> Row:
    if b"\0" in "".join(fields).encode():
        return RowError("NUL byte")
    if len(fields) != len(header):
        return RowError(f"{len(fields)} fields instead of {len(header)}")
    return dict(zip(header, fields, strict=True))


def _parquet_rows(stream: IO[bytes], path: Path, format: Format) -> Rows:
    file = pq.ParquetFile(io.BytesIO(stream.read()) if path.suffix in PACKED else stream)  # it is read from its end
    _require_columns(path, format, file.schema_arrow.names)
    wanted = [format.id_column, format.label_column, format.text_column]
    batches = file.iter_batches(ROWS_PER_PROGRESS, columns=[name for name in wanted if name is not None])
    return enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)


READERS = dict.fromkeys([".jsonl", ".ndjson", ".json"], _json_rows) | dict.fromkeys([".csv", ".tsv"], _csv_rows)
READERS |= {".txt": _txt_rows, ".parquet": _parquet_rows}


def _require_columns(path: Path, format: Format, columns: Iterable[str]) -> None:
    names, extension = list(dict.fromkeys(columns)), _extension(path)
    for setting in ("text_column", "label_column"):
        wanted = getattr(format, setting)
        if wanted is not None and wanted not in names:
            found = ", ".join(repr(name[:40]) for name in names)
            hint = f" (a {extension} needs a header row; only .txt has none)" if extension in {".csv", ".tsv"} else ""
            advice = f"; set {format.options}{setting}=..." if format.options else ""
            raise UserError(f"{path}: no column {wanted!r} among {found}{advice}{hint}")


def _extension(path: Path) -> str:
    return unpacked_name(path).suffix


def unpacked_name(path: Path) -> Path:
    """The path without the ending of what packed it."""
    return path.with_suffix("") if path.suffix in PACKED else path


def decompressed(file: io.FileIO, path: Path) -> io.BufferedReader:
    is_packed = path.suffix in PACKED and path.stat().st_size  # a file without anything is not
    raw: Any = PACKED[path.suffix](file) if is_packed else file
    stream = io.BufferedReader(raw, 1 << 18)
    if stream.peek(3).startswith(b"\xef\xbb\xbf"):  # a byte order mark
        stream.read(3)
    return stream


@contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(f"{path}: cannot be read: {reason}") from None
