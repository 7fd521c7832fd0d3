"""`zoo predict`: predict labels of documents with nothing but a checkpoint."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast

from datamodules.prepare.readers import READERS, BadRows, Format, read_documents, unpacked_name
from zoo.commands.output import opened_output
from zoo.core.console import progress_bar
from zoo.core.errors import UserError, first_line
from zoo.training.tagger import load

PLAIN = {".txt"}  # a corpus in this format has columns; here each line is a document


def predict(
    *,
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
    """Predict labels of documents with a trained model.

    Args:
        ckpt: checkpoint of `zoo fit`.
        input: jsonl, csv, tsv or parquet file, or a text file with one document per line; can be compressed. `-` reads
            jsonl or text from standard input.
        out: jsonl file to write, `-` for standard output.
        k: maximum number of labels per document.
        threshold: minimum score of a label; `tuned` uses the threshold tuned on the validation documents.
        text_column: column of the text.
        id_column: column of the document id; documents without one are numbered.
        batch_size: documents per batch.
        device: device such as `cpu` or `cuda` (default: a GPU if available).

    Examples:
        zoo predict --ckpt best.ckpt --input docs.jsonl --out labels.jsonl
        echo 'a document' | zoo predict --ckpt best.ckpt --input - --k 3
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
    """Raises an error at the first unreadable row, so that incomplete output is not mistaken for complete."""

    columns = "`text_column` and `id_column`"

    def add(self, path: Path, line: int, reason: str) -> None:
        raise UserError(f"{path}, line {line}: {reason}; set the columns with {self.columns}")


def documents(source: str, text_column: str, id_column: str) -> Iterator[tuple[Any, str]]:
    """Id and text of each document; its number if it has no id."""
    path = Path(source)
    kind = unpacked_name(path).suffix
    if source != "-" and kind in set(READERS) - PLAIN:
        rows = read_documents(path, Format(text_column, None, id_column), FirstBadRow())
        yield from ((row.id or number, row.text) for number, row in enumerate(rows, 1))
    else:
        with opened_lines(source) as lines:
            yield from parse_lines(lines, source, text_column, id_column)


def parse_lines(lines: IO[str], source: str, text_column: str, id_column: str) -> Iterator[tuple[Any, str]]:
    """Parse lines as JSON if the first one is an object, otherwise as plain text."""
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
            raise UserError(f"{source}, line {number}: no JSON object with a text in `text_column={text_column}`")


def parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextmanager
def opened_lines(source: str) -> Iterator[IO[str]]:
    """Open standard input or a text file; invalid UTF-8 becomes replacement characters."""
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
