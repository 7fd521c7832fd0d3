"""Documents to label: tables, lines of JSON, or lines of text, from files and from standard input."""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from datamodules.prepare.opening import RowError, extension_of, opened, read_errors
from datamodules.prepare.readers import READERS, Format
from zoo.core.errors import UserError

JSON = {".jsonl", ".ndjson", ".json"}
TABLES = {".csv", ".tsv", ".parquet"}
SPARSE = ".xmc"  # lines of features, whose first line is a header
Row = tuple[Any, str]  # id and text


def documents(source: str, text_column: str, id_column: str, max_length: int) -> Iterator[Row]:
    """Id and text of each document; the id is its number if it has none."""
    kind = extension_of(Path(source)) if source != "-" else ""
    if kind == SPARSE:
        import datamodules.corpora.sparse_files  # noqa: F401  # adds its reader; imports Lightning
    if kind in {*TABLES, SPARSE}:
        return table_rows(Path(source), kind, text_column, id_column)
    return line_rows(source, kind in JSON, text_column, id_column, max_length)


def shown(source: str) -> str:
    """Name of a source in messages."""
    return "standard input" if source == "-" else source


def may_pause(source: str) -> bool:
    """Whether a source is a pipe or a terminal, where documents may come one at a time."""
    try:
        return not stat.S_ISREG(os.stat(0 if source == "-" else source).st_mode)
    except OSError:
        return False


def table_rows(path: Path, kind: str, text_column: str, id_column: str) -> Iterator[Row]:
    with opened(path, pipes=True) as stream:
        rows = READERS[kind](stream, path, Format(text_column, None, id_column)) if stream.peek(1) else ()
        for number, (line, row) in enumerate(rows, 1):
            if isinstance(row, RowError):
                raise UserError(f"{path}, line {line}: {row}")
            yield document(row, number, f"{path}, line {line}", text_column, id_column)


def line_rows(source: str, is_json: bool, text_column: str, id_column: str, max_length: int) -> Iterator[Row]:
    """Parse lines as JSON if the first one is an object, otherwise as plain text; blank ones are skipped."""
    with opened_lines(source) as file:
        first = True
        for number, line in read_lines(file, shown(source), max_length):
            row = parse(line) if first or is_json else None
            is_json = is_json or isinstance(row, dict)
            first = False
            if not is_json:
                yield number, line.rstrip("\r\n")
            elif isinstance(row, dict):
                yield document(row, number, f"{shown(source)}, line {number}", text_column, id_column)
            else:
                raise UserError(f"{shown(source)}, line {number}: not a JSON object")


def document(row: dict[str, Any], number: int, place: str, text_column: str, id_column: str) -> Row:
    text = row.get(text_column)
    if not isinstance(text, str):
        found = f"is of type {type(text).__name__}, not a string" if text_column in row else "is missing"
        raise UserError(f"{place}: {text_column!r} {found}; set the columns with `text_column` and `id_column`")
    return row.get(id_column, number), text


def parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_lines(file: IO[str], source: str, max_length: int) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank."""
    number = 0
    while line := file.readline(max_length + 2):  # with the end of a line
        number += 1
        if len(line.rstrip("\r\n")) > max_length:
            raise UserError(f"{source}, line {number}: longer than `max_line_length={max_length}`")
        if "\0" in line:
            raise UserError(f"{source}, line {number}: NUL byte; the input must be text in UTF-8")
        try:
            line.encode()
        except UnicodeEncodeError:
            raise UserError(f"{source}, line {number}: invalid UTF-8; convert the input, e.g. with iconv") from None
        if not line.isspace():
            yield number, line


@contextmanager
def opened_lines(source: str) -> Iterator[IO[str]]:
    """Open standard input or a file that may be compressed; invalid bytes become lone surrogates."""
    with standard_input() if source == "-" else opened(Path(source), any_encoding=True, pipes=True) as stream:
        is_utf16 = stream.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding, errors = ("utf-16", "replace") if is_utf16 else ("utf-8-sig", "surrogateescape")
        yield io.TextIOWrapper(stream, encoding, errors, newline="\n")


@contextmanager
def standard_input() -> Iterator[io.BufferedReader]:
    if sys.stdin is None:
        raise UserError("standard input is closed: give a file with `input`")
    try:
        # A buffer of our own: a thread that waits for `sys.stdin` would keep Python from closing it at exit
        raw: io.RawIOBase = io.FileIO(sys.stdin.fileno(), closefd=False)
    except io.UnsupportedOperation:  # replaced in Python, as in notebooks and tests
        raw = io.BytesIO(sys.stdin.read().encode("utf8", "surrogatepass"))  # type: ignore[assignment]
    with read_errors(Path(shown("-"))):
        yield io.BufferedReader(raw)
