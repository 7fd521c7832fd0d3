"""`python -m zoo predict`: documents in, labels out, from a checkpoint alone."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast

from datamodules.errors import UserError
from datamodules.progress import progress_bar
from zoo.tagger import load


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
        input: jsonl file, or a file with a document on each line; also gzipped; `-` reads standard input.
        out: jsonl file to write; `-` writes standard output.
        k: labels for each document.
        threshold: leave out labels that score less; `tuned` takes what was best on validation documents.
        text_column: where a jsonl row has its text.
        id_column: where a jsonl row has its id; line numbers stand in for missing ones.
        batch_size: documents that are computed together.
        device: `cpu`, `cuda`, ...; a GPU if there is one by default.
    """
    tagger = load(ckpt, device)
    tagger.batch_size = batch_size
    least = tagger.threshold if threshold == "tuned" else threshold
    ids: deque[Any] = deque()

    def texts(documents: Iterator[tuple[Any, str]]) -> Iterator[str]:
        for id_, text in documents:
            ids.append(id_)
            yield text

    with opened_input(input) as lines, opened_output(out) as sink, progress_bar("Predicting") as bar:
        advance = bar(None)
        for tags in tagger.stream(texts(documents(lines, input, text_column, id_column)), k, least):
            labels = [{"label": tag.label, "score": round(tag.score, 6)} for tag in tags]
            sink.write(json.dumps({"id": ids.popleft(), "labels": labels}, ensure_ascii=False) + "\n")
            advance(1)


def documents(lines: IO[str], source: str, text_column: str, id_column: str) -> Iterator[tuple[Any, str]]:
    """Id and text of each line; jsonl if the name says so or the first line is a JSON object."""
    is_json = source.removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number == 1:
            is_json = is_json or is_object(line)
        yield parse(line, number, source, text_column, id_column) if is_json else (number, line.rstrip("\r\n"))


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def parse(line: str, number: int, source: str, text_column: str, id_column: str) -> tuple[Any, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}, line {number}: broken JSON: {error.msg}") from error
    if not isinstance(row, dict) or not isinstance(row.get(text_column), str):
        raise UserError(f"{source}, line {number}: no text in {text_column!r}; choose with --text_column")
    return row.get(id_column, number), row[text_column]


@contextmanager
def opened_input(source: str) -> Iterator[IO[str]]:
    if source == "-":
        yield sys.stdin
        return
    if not Path(source).is_file():
        raise UserError(f"no such file: {source}")
    opener = gzip.open if source.endswith(".gz") else open
    with opener(source, "rt", encoding="utf8") as file:
        yield cast(IO[str], file)


@contextmanager
def opened_output(target: str) -> Iterator[IO[str]]:
    """Standard output, or a file that appears under its name when it is whole."""
    if target == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(target)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf8") as file:
            yield file
        aside.rename(path)
    except FileNotFoundError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
