"""Corpora by name or path, for the commands of `python -m zoo data`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import datamodules
from datamodules import Sample, TextDataModule
from datamodules.base import CorpusMissingError
from datamodules.errors import UserError
from datamodules.folder import NamedCorpus
from datamodules.locate import ANY_NUMBER, corpus_at
from datamodules.prepare import Corpus
from datamodules.published import Published
from datamodules.readers import Format
from zoo.catalog import load_plugins

T = TypeVar("T")


def named_corpora() -> dict[str, type[TextDataModule]]:
    """Corpora of the zoo and of plug-ins that need no files to be named, by their classes' names."""
    modules = (datamodules, *load_plugins())
    members = [member for module in modules for _, member in inspect.getmembers(module, inspect.isclass)]
    return {kind.__name__: kind for kind in members if is_named(kind)}


def is_named(kind: type) -> TypeGuard[type[TextDataModule]]:
    return kind is Sample or (issubclass(kind, NamedCorpus) and isinstance(getattr(kind, "folder", None), str))


def published(kind: type) -> tuple[Published, ...]:
    rows: tuple[Published, ...] = getattr(kind, "published", ())
    return rows


def place_of(kind: type[TextDataModule]) -> str:
    """The folder in which a corpus is found without a network."""
    if not issubclass(kind, NamedCorpus):
        return "built in"
    try:
        source = kind(download=False).find_corpus().sources["train"]
    except CorpusMissingError:
        return "not here"
    except UserError as error:  # found, but not to be read
        return str(error)
    return str(getattr(source, "path", Path(kind.folder)).parent)


def find_named(name: str) -> type[TextDataModule]:
    """The corpus of that name or folder, in whatever case."""
    kinds = named_corpora()
    known = {each.lower(): kind for each, kind in kinds.items()}
    known |= {str(getattr(kind, "folder", each)).lower(): kind for each, kind in kinds.items()}
    if name.lower() in known:
        return known[name.lower()]
    close = dict.fromkeys(known[each].__name__ for each in difflib.get_close_matches(name.lower(), known))
    meant = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(kinds)}"
    raise UserError(f"no corpus {name!r}: {meant}")


def find_corpus(path: str, format: Format, max_bad_rows: int = ANY_NUMBER) -> Corpus:
    """The corpus at a path, or else the one of that name."""
    place = Path(path).expanduser()
    if place.exists() or "/" in path or place.suffix:
        return corpus_at(place, format, max_bad_rows)
    try:
        kind = find_named(path)
    except UserError as error:
        raise UserError(f"no such file or folder: {path}, and {error}") from None
    if format != Format(options=format.options):
        raise UserError(f"{kind.__name__} has columns of its own: options for them go with a file or a folder")
    settings: dict[str, Any] = {"download": False} if issubclass(kind, NamedCorpus) else {}
    try:
        return option_names(lambda: kind(max_bad_rows=max_bad_rows, **settings).find_corpus())
    except CorpusMissingError as error:
        if not getattr(kind, "sources", ()):
            raise
        raise UserError(f"{error}; `python -m zoo data prepare {path}` fetches it") from error


def option_names(action: Callable[[], T]) -> T:
    """Messages of datamodules name options as `fit` has them; here they have no `--data.`"""
    try:
        return action()
    except UserError as error:
        raise type(error)(str(error).replace("--data.", "--")) from error
