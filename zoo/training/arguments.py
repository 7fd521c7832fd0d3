"""Checks of the arguments of the Python API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from zoo.core.errors import UserError, check_low, check_range, first_line

MAX_NAME_LENGTH = 80  # of a label in an error message
AUTO = "auto"  # threshold: those of the calibration, or else the tuned one


def check_limits(k: int | None, threshold: float | str) -> None:
    """Check the arguments of `Tagger.tag`."""
    if k is not None:
        check_number("k", k, Integral)
        check_low(1, k=k)
    if threshold != AUTO:
        if isinstance(threshold, str):
            raise UserError(f"`threshold={threshold}` is neither a number nor {AUTO}")
        check_number("threshold", threshold, Real)
        check_range(0, 1, threshold=threshold)


def check_number(name: str, value: object, kind: type) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        wanted = "an integer" if kind is Integral else "a number"
        raise TypeError(f"`{name}={value!r}` is of type {type(value).__name__}, not {wanted}")


def checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"`path={path!r}` is of type {type(path).__name__}, not a string or a path")
    try:
        place = Path(path).expanduser()
        place.exists()  # raises an error if the name is too long
        place.resolve()  # or in a loop of links, or not a name at all
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{quoted([str(path)])} is not the name of a file: {first_line(error)}") from error
    return place


def well_formed(text: str) -> str:
    """Replace lone surrogates, which tokenizers refuse, by U+FFFD; pairs of them become characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def check_examples(examples: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[str], list[list[str]]]:
    """Split examples into texts and labels; drop texts without labels."""
    if isinstance(examples, str | bytes | Mapping) or not isinstance(examples, Iterable):
        raise TypeError('`examples` must be pairs of a text and its labels: [("a text", ["a label"]), ...]')
    texts: list[str] = []
    labels: list[list[str]] = []
    for number, example in enumerate(examples, 1):
        text, several = example if isinstance(example, tuple | list) and len(example) == 2 else (None, None)
        given = None if isinstance(several, str | Mapping) or not isinstance(several, Iterable) else list(several)
        if not isinstance(text, str) or given is None or not all(isinstance(name, str) for name in given):
            raise TypeError(f"example {number} must be a text and a list of labels, all of them strings")
        names = list(dict.fromkeys(name.strip() for name in given))  # as corpora are read
        if "" in names or (names and not text.strip()):
            raise UserError(f"example {number} has an empty {'label' if text.strip() else 'text'}")
        if wrong := [name for name in names if name != well_formed(name)]:
            raise UserError(f"example {number}: the label {wrong[0]!r} contains a lone surrogate")
        if names:
            texts.append(text)
            labels.append(names)
    if not texts:
        raise UserError("no document has a label: nothing to learn from")
    return texts, labels


def check_label_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Strip the names of labels, and refuse those without a text."""
    if not isinstance(texts, Mapping) or not all(isinstance(part, str) for pair in texts.items() for part in pair):
        raise TypeError('`texts` must be texts of labels by name: {"a label": "its text"}')
    found = {name.strip(): text.strip() for name, text in texts.items()}
    if wrong := [name for name, text in found.items() if not name or not text or name != well_formed(name)]:
        raise UserError(f"the label {wrong[0]!r} has no text, or is no valid name")
    return found


def quoted(names: list[str]) -> str:
    """Format the first name and the number of the others."""
    first = repr(names[0] if len(names[0]) <= MAX_NAME_LENGTH else names[0][:MAX_NAME_LENGTH] + "...")
    return first if len(names) == 1 else f"{first} and {len(names) - 1:,} more"
