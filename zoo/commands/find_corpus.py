"""Finds corpora by name or path, for the commands of `zoo data`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, TypeGuard

import datamodules
from datamodules import Sample, TextDataModule
from datamodules.base import CorpusMissingError
from datamodules.corpora.named import NamedCorpus
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.readers import Format
from datamodules.tools.locate import ANY_NUMBER, corpus_at
from datamodules.tools.statistics import Published
from zoo.core.errors import UserError, did_you_mean
from zoo.core.parts import load_plugins


def named_corpora() -> dict[str, type[TextDataModule]]:
    """Corpora of the zoo and of plug-ins that can be used without the user's own files, by class name."""
    modules = (datamodules, *load_plugins())
    members = [member for module in modules for _, member in inspect.getmembers(module, inspect.isclass)]
    return {kind.__name__: kind for kind in members if is_named(kind)}


def is_named(kind: type) -> TypeGuard[type[TextDataModule]]:
    return kind is Sample or (issubclass(kind, NamedCorpus) and isinstance(getattr(kind, "folder", None), str))


def published(kind: type) -> tuple[Published, ...]:
    rows: tuple[Published, ...] = getattr(kind, "published", ())
    return rows


def location_of(kind: type[TextDataModule]) -> str:
    """Folder of a corpus on this machine."""
    if not issubclass(kind, NamedCorpus):
        return "built in"
    try:
        source = kind(download=False).find_corpus().sources["train"]
    except CorpusMissingError:
        return "not downloaded"
    except UserError as error:  # found, but unreadable
        return str(error)
    return str(getattr(source, "path", Path(kind.folder)).parent)


def find_named(name: str) -> type[TextDataModule]:
    """Find a corpus by its class name or folder; case is ignored."""
    kinds = named_corpora()
    known = {each.lower(): kind for each, kind in kinds.items()}
    known |= {str(getattr(kind, "folder", each)).lower(): kind for each, kind in kinds.items()}
    if name.lower() not in known:
        raise UserError(f"unknown corpus {name!r}: {did_you_mean(name, list(kinds))}")
    return known[name.lower()]


def find_corpus(path: str, format: Format, max_bad_rows: int = ANY_NUMBER) -> Corpus:
    """Find a corpus by its path, or else by its name."""
    place = Path(path).expanduser()
    if place.exists() or "/" in path or place.suffix:
        return corpus_at(place, format, max_bad_rows)
    try:
        kind = find_named(path)
    except UserError as error:
        raise UserError(f"no such file or folder: {path}; {error}") from None
    if format != Format():
        raise UserError(f"{kind.__name__} has fixed columns: options for columns are for files and folders")
    settings: dict[str, Any] = {"download": False} if issubclass(kind, NamedCorpus) else {}
    try:
        return kind(max_bad_rows=max_bad_rows, **settings).find_corpus()
    except CorpusMissingError as error:
        if not getattr(kind, "sources", ()):
            raise
        raise UserError(f"{error}; `zoo data prepare {path}` downloads it") from error
