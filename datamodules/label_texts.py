"""What labels mean, in words: a file of descriptions and parents that lies beside a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.errors import UserError
from datamodules.readers import PACKED, READERS, Format, RowError, decompressed, unpacked_name, user_errors

ROWS = (".jsonl", ".ndjson", ".csv", ".tsv")  # a row for each label
SUFFIXES = [kind + packed for kind in (".json", *ROWS) for packed in ("", *PACKED)]
WORDS = ("label", "name", "text", "description")  # where what a label is called and means may stand, in this order


@dataclass(frozen=True)
class Meaning:
    """Names and description of a label, and the labels above it."""

    words: tuple[str, ...]
    parents: tuple[str, ...]


def read_label_texts(path: Path) -> dict[str, str]:
    """The text of each label: its own words, then those of its parents.

    A `.json` file is one object with an entry for each label, which is its text or an object; the others have rows with
    the label in the column `label`. Words are taken from `name`, `text`, `description` and `alt_labels`, and
    in a `.json` file also from `label`, which is the name there.
    """
    if unpacked_name(path).suffix not in (".json", *ROWS):
        raise UserError(f"{path}: texts of labels are read from {', '.join(('.json', *ROWS))}, also with .gz or .bz2")
    with user_errors(path), path.open("rb", buffering=0) as file, decompressed(file, path) as stream:
        if unpacked_name(path).suffix == ".json":
            found = dict(_entries(path, stream.read()))
        else:
            rows = READERS[unpacked_name(path).suffix](stream, path, Format("label", None, "label", options=""))
            found = dict(_labelled(path, rows))
    own = {label: ", ".join(meaning.words) for label, meaning in found.items()}
    above = {label: [own[p] for p in found[label].parents if p != label and own.get(p)] for label in found}
    return {label: "; ".join(part for part in (own[label], *above[label]) if part) for label in found}


def _entries(path: Path, content: bytes) -> Iterator[tuple[str, Meaning]]:
    try:
        entries = json.loads(content)
        json.dumps(entries, ensure_ascii=False).encode()  # half a surrogate pair parses, but no tokenizer takes it
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}") from None
    if not isinstance(entries, dict):
        raise UserError(f"{path}: expected one object with an entry for each label; rows go into a .jsonl file")
    for label, entry in entries.items():
        yield str(label).strip(), _meaning({"text": entry} if isinstance(entry, str) else entry, f"{path}: {label!r}")


def _labelled(path: Path, rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[str, Meaning]]:
    seen = set[str]()
    for line, row in rows:
        label = "" if isinstance(row, RowError) else str(row.get("label") or "").strip()
        if not label or label in seen:
            reason = row if isinstance(row, RowError) else f"{label!r} is there twice" if label else "no label"
            raise UserError(f"{path}: line {line}: {reason}")
        seen.add(label)
        yield label, _meaning({name: row[name] for name in row if name != "label"}, f"{path}: line {line}")


def _meaning(entry: Any, where: str) -> Meaning:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected a text, or an object with text and parents")
    words = [entry.get(name) or "" for name in WORDS]
    others, parents = (_several(entry.get(name), where) for name in ("alt_labels", "parents"))
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{where}: {', '.join(WORDS)} must be strings")
    return Meaning(tuple(dict.fromkeys(word.strip() for word in (*words, *others) if word.strip())), parents)


def _several(value: Any, where: str) -> tuple[str, ...]:
    """A list, or in a table one string with semicolons."""
    items = value.split(";") if isinstance(value, str) else value or []
    if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
        raise UserError(f"{where}: alt_labels and parents must be lists, or strings with semicolons")
    return tuple(name for item in items if (name := str(item).strip()))
