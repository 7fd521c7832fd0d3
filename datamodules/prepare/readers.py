"""Readers of corpus files. Files are streamed row by row, so memory does not grow with their size."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from datamodules.prepare.limits import DEFAULT_LIMITS, Limits
from datamodules.prepare.opening import (
    DECOMPRESSORS,
    NOT_UTF8,
    RowError,
    decompressed,
    extension_of,
    limited_lines,
    read_errors,
)
from zoo.core.errors import UserError

ROWS_PER_PROGRESS = 1_000
ROWS_TO_FIND_COLUMNS = 100  # a few JSON lines may lack a column; if all of the first 100 do, its name is wrong
SHOWN_BAD_ROWS = 5
Progress = Callable[[int], None]
# Control characters except tabs and line breaks
CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Document:
    """Labelled text of a corpus."""

    id: str  # empty if the corpus has no ids
    text: str
    labels: list[str]

    @property
    def is_replaced(self) -> bool:
        """Whether a character could not be read, now or when the file was written."""
        return any(REPLACEMENT in part for part in (self.text, self.id, *self.labels))


@dataclass
class Format:
    """Column names of a corpus file, and the separator of labels that are stored as one string."""

    text_column: str = "text"
    label_column: str | None = "labels"  # None if rows have no labels
    id_column: str = "id"
    label_sep: str | None = None
    limits: Limits = DEFAULT_LIMITS
    fixed: bool = field(default=False, repr=False)  # users cannot choose the columns; not part of cache keys


@dataclass
class BadRows:
    """Counter of unreadable rows. It tolerates `max_bad_rows` of them over all files of a corpus."""

    max_bad_rows: int = 0
    counts: dict[Path, int] = field(default_factory=dict)
    first: dict[Path, list[tuple[int, str]]] = field(default_factory=dict)  # line and reason of the first bad rows
    replaced: dict[Path, int] = field(default_factory=dict)  # documents with characters that are replaced

    def start(self, path: Path) -> None:
        """Start a file, and discard the counts of earlier passes over it."""
        self.counts[path], self.first[path], self.replaced[path] = 0, [], 0

    def add(self, path: Path, line: int, reason: str) -> None:
        self.counts[path] += 1
        if self.counts[path] <= SHOWN_BAD_ROWS:
            self.first[path].append((line, reason))

    def check(self, path: Path) -> None:
        """Raise `UserError` if the file has bad rows and there are now more than tolerated."""
        total = sum(self.counts.values())
        if self.counts[path] and total > self.max_bad_rows:
            raise UserError(f"{self._summary(path)}; fix them or allow some with `max_bad_rows={total}`")

    def report(self, path: Path) -> list[str]:
        """Return a one-line summary of bad rows and one of replaced characters, if the file has such."""
        lines = [self._summary(path)] if self.counts.get(path) else []
        if count := self.replaced.get(path):
            lines.append(
                f"{path}: U+FFFD in {count:,} document{'s' if count > 1 else ''}, in the file or for NUL bytes, lone "
                "surrogates, and control characters of ids and labels"
            )
        return lines

    def _summary(self, path: Path) -> str:
        count, first = self.counts[path], self.first[path]
        plural, unit = "s" if count > 1 else "", "row" if extension_of(path) == ".parquet" else "line"
        where = f"{'first ' if count > len(first) else ''}at {unit}{plural} {', '.join(str(line) for line, _ in first)}"
        return f"{path}: {count} bad row{plural}, {where} ({unit} {first[0][0]}: {first[0][1]})"


def read_documents(
    path: Path, format: Format, bad: BadRows, progress: Progress | None = None, reader: Reader | None = None
) -> Iterator[Document]:
    """Yield the documents of one file; see `read_numbered`."""
    return (document for _, document in read_numbered(path, format, bad, progress, reader))


def read_numbered(
    path: Path, format: Format, bad: BadRows, progress: Progress | None = None, reader: Reader | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield the documents of one file, each with the line (the row in parquet files) on which it starts.

    Args:
        path: file to read.
        format: column names.
        bad: collects the rows that cannot be read.
        progress: called with the number of bytes read since its last call.
        reader: by default the one of the file's extension.
    """
    bad.start(path)
    with (
        read_errors(path, pipes=False),
        path.open("rb", buffering=0) as file,
        decompressed(file, path, format.limits) as stream,
    ):
        size, reported = path.stat().st_size, 0
        extension = extension_of(path)
        if (reader := reader or READERS.get(extension)) is None:
            raise UserError(
                f"{path}: unknown extension; supported are {', '.join(READERS)}, "
                f"each also with {' or '.join(DECOMPRESSORS)}"
            )
        if extension in {".csv", ".tsv", ".txt"}:
            format = replace(format, label_sep=format.label_sep or ",")
        for number, (line, row) in enumerate(reader(stream, path, format) if stream.peek(1) else (), 1):
            if progress and number % ROWS_PER_PROGRESS == 0:
                progress(max(file.tell() - reported, 0))  # parquet readers may seek backwards
                reported = max(file.tell(), reported)
            try:
                document = document_of(row, format)
            except RowError as error:
                bad.add(path, line, str(error))
                continue
            bad.replaced[path] += document.is_replaced
            yield line, document
        if progress:
            progress(size - reported)
    bad.check(path)


def fingerprint(path: Path) -> str:
    """Hash the content of a file."""
    with read_errors(path, pipes=False), path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


ParsedRow = dict[str, Any] | RowError
ParsedRows = Iterator[tuple[int, ParsedRow]]  # with the line on which a row starts
Reader = Callable[[IO[bytes], Path, Format], ParsedRows]


def document_of(row: ParsedRow, format: Format) -> Document:
    """Build a document from the columns of a row, or raise `RowError`."""
    if isinstance(row, RowError):
        raise row
    for column in (format.text_column, format.label_column):
        if column is not None and column not in row:
            raise RowError(f"no column {column!r}")
    text, id = row[format.text_column], row.get(format.id_column)
    if not isinstance(text, str):
        raise RowError(f"{format.text_column!r} is {_type_name(text)}, not a string")
    if len(text) > format.limits.text_characters:
        raise RowError(f"its text has over {format.limits.text_mb:g} million characters (`limits.text_mb`)")
    labels = [] if format.label_column is None else _labels(row[format.label_column], format)
    return Document("" if id is None else _printable(str(id)), text.replace("\0", REPLACEMENT), labels)


def _labels(value: Any, format: Format) -> list[str]:
    if format.label_sep and isinstance(value, str | None):
        value = (value or "").split(format.label_sep)
    elif not isinstance(value, list):
        raise RowError(f"{format.label_column!r} is {_type_name(value)}, not a list (a string needs `label_sep`)")
    if wrong := [label for label in value if not isinstance(label, str | int) or isinstance(label, bool)]:
        raise RowError(f"a label is {_type_name(wrong[0])}, not a string or an integer")
    return [name for name in dict.fromkeys(_printable(str(label).strip()) for label in value) if name]


def _printable(name: str) -> str:
    """Replace control characters, which terminals would obey."""
    return name if name.isprintable() else CONTROL.sub(REPLACEMENT, name)


def _type_name(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _json_rows(stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
    rows = _line_rows(stream, _parse_json, format.limits)
    head = list(islice(rows, ROWS_TO_FIND_COLUMNS))
    if objects := [row for _, row in head if isinstance(row, dict)]:
        _require_columns(path, format, chain.from_iterable(objects))
    return chain(head, rows)


def _parse_json(line: str) -> ParsedRow:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        return RowError(f"broken JSON: {getattr(error, 'msg', error)}")
    return row if isinstance(row, dict) else RowError("not a JSON object")


def parse_json(text: str) -> Any:
    """Parse JSON with control characters and lone surrogates; the latter, which tokenizers refuse, are replaced."""
    found = DECODER.decode(text)
    if "\\ud" in text or "\\uD" in text:
        written = json.dumps(found, ensure_ascii=False).encode("utf-16", "surrogatepass")
        found = DECODER.decode(written.decode("utf-16", "replace"))
    return found


DECODER = json.JSONDecoder(strict=False)


def _txt_rows(stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
    def parse(line: str) -> ParsedRow:
        fields = line.removesuffix("\n").removesuffix("\r").split("\t", 2)
        if len(fields) < 3:
            return RowError("fewer than 2 tabs; a line is id<TAB>labels<TAB>text")
        return dict(zip((format.id_column, format.label_column or "", format.text_column), fields, strict=True))

    return _line_rows(stream, parse, format.limits)


def _line_rows(stream: IO[bytes], parse: Callable[[str], ParsedRow], limits: Limits) -> ParsedRows:
    for number, line in enumerate(limited_lines(stream, limits), 1):
        if isinstance(line, RowError):
            yield number, line
        elif not line.isspace():
            try:
                yield number, parse(line.decode())
            except UnicodeDecodeError:
                yield number, RowError(NOT_UTF8)


def _csv_rows(stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
    csv.field_size_limit(format.limits.line_bytes)  # the lines of a quoted field may be short, but many
    too_long: list[RowError] = []

    def lines() -> Iterator[str]:
        for line in limited_lines(stream, format.limits):
            if isinstance(line, RowError):
                too_long.append(line)
            # An invalid byte must not end the whole file.
            yield "" if isinstance(line, RowError) else line.decode(errors="surrogateescape")

    reader = csv.reader(lines(), delimiter="\t" if extension_of(path) == ".tsv" else ",", strict=True)
    if header := next(filter(None, reader), []):
        _require_columns(path, format, header)
        wanted = (format.id_column, format.text_column, format.label_column)
        if twice := [name for name in wanted if name is not None and header.count(name) > 1]:
            raise UserError(f"{path}: the header contains {twice[0]!r} more than once: rename one of the columns")
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
            if too_long:
                yield line, too_long[0]
                too_long.clear()
            elif fields:  # else a blank line
                yield line, _csv_row(header, fields)
        except StopIteration:
            return
        except UnicodeEncodeError:
            yield line, RowError(NOT_UTF8)
        except csv.Error as error:  # strict mode also reports an open quote, which would swallow the rest of the file
            advice = " (`limits.line_mb`)" if "field limit" in str(error) else ""
            yield line, RowError(f"broken csv: {error}{advice}")


def _csv_row(header: list[str], fields: list[str]) -> ParsedRow:
    "".join(fields).encode()  # raises UnicodeEncodeError if a byte was invalid
    if len(fields) != len(header):
        return RowError(f"{len(fields)} fields instead of {len(header)}")
    return dict(zip(header, fields, strict=True))


def _parquet_rows(stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
    # Parquet needs random access, which a compressed stream does not have.
    file = pq.ParquetFile(io.BytesIO(stream.read()) if path.suffix in DECOMPRESSORS else stream)
    _require_columns(path, format, file.schema_arrow.names)
    sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    format.limits.check_unpacked(sum(sizes), sum(sizes), path)
    wanted = [format.id_column, format.label_column, format.text_column]
    batches = file.iter_batches(ROWS_PER_PROGRESS, columns=[name for name in wanted if name is not None])
    return enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)


READERS = dict.fromkeys([".jsonl", ".ndjson", ".json"], _json_rows) | dict.fromkeys([".csv", ".tsv"], _csv_rows)
READERS |= {".txt": _txt_rows, ".parquet": _parquet_rows}


def _require_columns(path: Path, format: Format, columns: Iterable[str]) -> None:
    names, extension = list(dict.fromkeys(columns)), extension_of(path)
    for setting in ("text_column", "label_column"):
        wanted = getattr(format, setting)
        if wanted is not None and wanted not in names:
            found = ", ".join(repr(name[:40]) for name in names)
            hint = f" (a {extension} needs a header row; only .txt has none)" if extension in {".csv", ".tsv"} else ""
            advice = "" if format.fixed else f"; set `{setting}=...`"
            raise UserError(f"{path}: no column {wanted!r} among {found}{advice}{hint}")
