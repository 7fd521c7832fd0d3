"""Corpus files as streams of bytes: decompressed, without a byte order mark, and with lines of limited length."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from datamodules.prepare.limits import DEFAULT_LIMITS, MB, Limits, limited
from zoo.core.errors import UserError

DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File}
UTF8 = codecs.BOM_UTF8
BYTE_ORDER_MARKS = {  # of UTF-32 first, because one of its marks starts with one of UTF-16
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"),
}
NOT_UTF8 = "invalid UTF-8; convert the file if it is Latin-1: iconv -f LATIN1 -t UTF-8"


class RowError(Exception):
    """Reason why a row cannot be read as a document."""


def unpacked_name(path: Path) -> Path:
    """Path without its compression suffix."""
    return path.with_suffix("") if path.suffix in DECOMPRESSORS else path


def extension_of(path: Path) -> str:
    """Extension that says what the file contains, such as `.csv` of `train.csv.gz`."""
    return unpacked_name(path).suffix


@contextmanager
def opened(
    path: Path, limits: Limits = DEFAULT_LIMITS, any_encoding: bool = False, pipes: bool = False
) -> Iterator[io.BufferedReader]:
    """Open a file that may be compressed, and turn what goes wrong into a `UserError`.

    Text is UTF-8, and a byte order mark is skipped, unless the caller handles `any_encoding`.
    """
    with (
        read_errors(path, pipes),
        path.open("rb", buffering=0) as file,
        decompressed(file, path, limits, any_encoding) as stream,
    ):
        yield stream


def decompressed(file: io.FileIO, path: Path, limits: Limits, any_encoding: bool = False) -> io.BufferedReader:
    if path.suffix in DECOMPRESSORS and path.stat().st_size:  # an empty file is not a gzip file
        stream = limited(DECOMPRESSORS[path.suffix](file), file.tell, path, limits)
    else:
        stream = io.BufferedReader(file, 1 << 18)
    if not any_encoding and extension_of(path) != ".parquet":
        skip_byte_order_mark(stream, path)
    return stream


def skip_byte_order_mark(stream: io.BufferedReader, path: Path) -> None:
    """Skip the byte order mark of UTF-8, and refuse UTF-16 (with and without a mark) and UTF-32."""
    head = stream.peek(512)[:512]
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    zeros = [head[place::2].count(0) for place in (0, 1)]
    if encoding is None and 4 * min(zeros) < max(zeros) > len(head) // 4:  # ASCII has one in every second place
        encoding = "UTF-16LE" if zeros[1] > zeros[0] else "UTF-16BE"
    if encoding:
        raise UserError(f"{path} is {encoding}, not UTF-8: convert it, for example with iconv -f {encoding} -t UTF-8")
    if head.startswith(UTF8):
        stream.read(len(UTF8))


def limited_lines(stream: IO[bytes], limits: Limits) -> Iterator[bytes | RowError]:
    """Iterate over lines, with an error in the place of each that is too long, and that is not kept in memory."""
    longest = limits.line_bytes
    while line := stream.readline(longest + 1):
        if len(line) <= longest:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(longest + 1)
        yield RowError(f"longer than {limits.line_mb:g} MB (`limits.line_mb`)")


def read_all(stream: IO[bytes], path: Path) -> bytes:
    """Read a file that is small enough to be one line."""
    longest = DEFAULT_LIMITS.line_bytes
    content = stream.read(longest + 1)
    if len(content) > longest:
        raise UserError(f"{path} is too large: over {longest // MB} MB")
    return content


@contextmanager
def read_errors(path: Path, pipes: bool = True) -> Iterator[None]:
    """Turn errors of reading a file into a one-line `UserError`; without `pipes`, also a pipe, which may block."""
    try:
        if not pipes and path.is_fifo():
            raise UserError(f"{path} is a pipe: corpora are read more than once, so save it as a file")
        yield
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(f"{path}: cannot be read: {reason}") from None
