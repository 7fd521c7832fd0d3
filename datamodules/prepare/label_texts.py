"""Reader of label-description files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.prepare.opening import DECOMPRESSORS, NOT_UTF8, RowError, extension_of, opened, read_all
from datamodules.prepare.readers import READERS, Format, parse_json
from zoo.core.errors import UserError

ROWS = (".jsonl", ".ndjson", ".csv", ".tsv")  # formats with one row per label
SUFFIXES = [kind + packed for kind in (".json", *ROWS) for packed in ("", *DECOMPRESSORS)]
WORDS = ("label", "name", "text", "description")  # fields with names and descriptions, in the order of their use


@dataclass(frozen=True)
class LabelDescription:
    """Names and description of a label, and its parent labels."""

    words: tuple[str, ...]
    parents: tuple[str, ...]


def label_texts(found: dict[str, LabelDescription]) -> dict[str, str]:
    """Text of each label: its own names and description, then those of its parents."""
    own = {label: ", ".join(description.words) for label, description in found.items()}
    above = {label: [own[p] for p in found[label].parents if p != label and own.get(p)] for label in found}
    return {label: "; ".join(part for part in (own[label], *above[label]) if part) for label in found}


def parent_pairs(found: dict[str, LabelDescription], names: list[str]) -> list[int]:
    """Indices of labels and their parents among `names`: child, parent, child, parent, ..."""
    index = {name: i for i, name in enumerate(names)}
    every = [(name, parent) for name in names if name in found for parent in dict.fromkeys(found[name].parents)]
    return [index[one] for pair in every if pair[0] != pair[1] and pair[1] in index for one in pair]


def read_labels(path: Path) -> dict[str, LabelDescription]:
    """Read names, descriptions and parents of labels.

    A `.json` file is an object that maps each label to a text or an object. The other formats have one row per label,
    which is in the column `label`. Texts are taken from `name`, `text`, `description` and `alt_labels`, and in a
    `.json` file also from `label`.
    """
    if extension_of(path) not in (".json", *ROWS):
        raise UserError(
            f"{path}: unknown extension of a label-description file; supported are "
            f"{', '.join(('.json', *ROWS))}, each also with .gz or .bz2"
        )
    with opened(path) as stream:
        if extension_of(path) == ".json":
            return dict(_entries(path, read_all(stream, path)))
        rows = READERS[extension_of(path)](stream, path, Format("label", None, "label", fixed=True))
        return dict(_labelled(path, rows))


def _entries(path: Path, content: bytes) -> Iterator[tuple[str, LabelDescription]]:
    try:
        entries = parse_json(content.decode())
    except UnicodeDecodeError:
        raise UserError(f"{path}: {NOT_UTF8}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}") from None
    if not isinstance(entries, dict):
        raise UserError(f"{path}: expected one object with an entry for each label; use .jsonl for one row per label")
    for label, entry in entries.items():
        fields = {"text": entry} if isinstance(entry, str) else entry
        yield str(label).strip(), _description(fields, f"{path}: {label!r}")


def _labelled(path: Path, rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[str, LabelDescription]]:
    seen = set[str]()
    for line, row in rows:
        label = "" if isinstance(row, RowError) else str(row.get("label") or "").strip()
        if not label or label in seen:
            reason = row if isinstance(row, RowError) else f"repeated label {label!r}" if label else "no label"
            raise UserError(f"{path}: line {line}: {reason}")
        seen.add(label)
        yield label, _description({name: row[name] for name in row if name != "label"}, f"{path}: line {line}")


def _description(entry: Any, where: str) -> LabelDescription:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected a text, or an object with text and parents")
    words = [entry.get(name) or "" for name in WORDS]
    others, parents = (_names(entry.get(name), where) for name in ("alt_labels", "parents"))
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{where}: {', '.join(WORDS)} must be strings")
    return LabelDescription(tuple(dict.fromkeys(word.strip() for word in (*words, *others) if word.strip())), parents)


def _names(value: Any, where: str) -> tuple[str, ...]:
    """Parse a list, or a string with semicolons as csv and tsv files have it."""
    items = value.split(";") if isinstance(value, str) else value or []
    if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
        raise UserError(f"{where}: alt_labels and parents must be lists, or strings with semicolons")
    return tuple(name for item in items if (name := str(item).strip()))
