"""`python -m zoo predict`: documents in, labels out, from a checkpoint alone."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal, cast

from datamodules.errors import UserError, first_line
from datamodules.files import written_whole
from datamodules.progress import progress_bar
from datamodules.readers import READERS, BadRows, Format, read_documents, unpacked_name
from zoo.tagger import load

PLAIN = {".txt"}  # read as a corpus it would have columns, here it has a document on each line


def predict(
    ckpt: str,
    input: str,
    out: str = "-",
    k: int = 5,
    threshold: float | Literal["tuned"] = 0.0,
    text_column: str = "text",
    id_column: str = "id",
    batch_size: int = 64,
    device: str | None = None,
) -> None:
    """Rank labels for documents.

    Args:
        ckpt: checkpoint of zoo fit.
        input: jsonl, csv, tsv or parquet file, or one with a document on each line; also gzipped; `-` reads standard
            input, jsonl or plain lines.
        out: jsonl file to write; `-` writes standard output.
        k: labels for each document.
        threshold: leave out labels that score less; `tuned` takes what was best on validation documents.
        text_column: where a row has its text.
        id_column: where a row has its id; numbers stand in for missing ones.
        batch_size: documents that are computed together.
        device: `cpu`, `cuda`, ...; a GPU if there is one by default.
    """
    tagger = load(ckpt, device)
    tagger.batch_size = batch_size
    least = tagger.threshold if threshold == "tuned" else threshold
    ids: deque[Any] = deque()

    def texts() -> Iterator[str]:
        for id_, text in documents(input, text_column, id_column):
            ids.append(id_)
            yield text

    with opened_output(out) as sink, progress_bar("Predicting") as bar:
        advance = bar(None)
        for tags in tagger.stream(texts(), k, least):
            labels = [{"label": tag.label, "score": round(tag.score, 6)} for tag in tags]
            sink.write(json.dumps({"id": ids.popleft(), "labels": labels}, ensure_ascii=False) + "\n")
            advance(1)


class FirstBadRow(BadRows):
    """Stops at the first row that cannot be read: an answer with a hole would be taken for a whole one."""

    columns = "--text_column and --id_column"

    def add(self, path: Path, line: int, reason: str) -> None:
        raise UserError(f"{path}, line {line}: {reason}; name the columns with {self.columns}")


def documents(source: str, text_column: str, id_column: str) -> Iterator[tuple[Any, str]]:
    """Id and text of each document; its number where it has no id."""
    path = Path(source)
    kind = unpacked_name(path).suffix
    if source != "-" and kind in set(READERS) - PLAIN:
        rows = read_documents(path, Format(text_column, None, id_column, options="--"), FirstBadRow())
        yield from ((row.id or number, row.text) for number, row in enumerate(rows, 1))
    else:
        with opened_lines(source) as lines:
            yield from parse_lines(lines, source, text_column, id_column)


def parse_lines(lines: IO[str], source: str, text_column: str, id_column: str) -> Iterator[tuple[Any, str]]:
    """Plain lines, or JSON if the first one is an object."""
    is_json = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = parse(line)
        if is_json is None:
            is_json = isinstance(row, dict)
        if not is_json:
            yield number, line.rstrip("\r\n")
        elif isinstance(row, dict) and isinstance(row.get(text_column), str):
            yield row.get(id_column, number), row[text_column]
        else:
            raise UserError(f"{source}, line {number}: no JSON object with {text_column!r}; choose with --text_column")


def parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextmanager
def opened_lines(source: str) -> Iterator[IO[str]]:
    """Standard input or a text file; bytes that are not UTF-8 become a replacement character."""
    if source == "-":
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")
        yield sys.stdin
        return
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(Path(source).suffix, open)
    try:
        with opener(source, "rt", encoding="utf-8-sig", errors="replace") as file:
            yield cast(IO[str], file)
    except FileNotFoundError:
        raise UserError(f"no such file: {source}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{source}: cannot be read: {first_line(error)}") from error


@contextmanager
def opened_output(target: str) -> Iterator[IO[str]]:
    """Standard output, a device or pipe, or a file that appears under its name when it is whole."""
    path = Path(target).resolve()
    special = path.exists() and not path.is_file()
    if target == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"cannot write {target}: not a file in an existing folder")
    with nullcontext(path) if special else written_whole(path) as place, place.open("w", encoding="utf8") as file:
        yield file
