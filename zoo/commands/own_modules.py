"""Modules outside the zoo, which the user names with `--trust`, in options or in an experiment."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


def split_trust(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split `--trust MODULE`, which can be repeated or have a list, from other arguments; the folder may have them."""
    trust: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        option, given, value = argument.partition("=")
        if option == "--trust":
            trust += [name.strip() for name in (value if given else next(arguments, "")).strip("[]").split(",")]
        else:
            rest.append(argument)
    allow_working_folder(trust)
    return trust, rest


def modules_named_in(values: Iterable[str]) -> Iterator[str]:
    """Modules of what may be dotted paths of classes, among options and settings."""
    for value in values:
        path = value.rpartition("=")[2]
        if "." in path and NAME.fullmatch(path):
            yield path.rpartition(".")[0]


def allow_working_folder(modules: Iterable[str]) -> None:
    """Let Python import from the working folder if one of the modules is in it; installed modules come first.

    Otherwise nothing is imported from there, since a file in it could have the name of an optional library.
    """
    here = Path.cwd()
    for module in modules:
        parts = module.split(".")
        places = [here.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
        files = [file for place in places for file in (place.with_name(f"{place.name}.py"), place / "__init__.py")]
        if any(file.is_file() for file in files) and find_spec(parts[0]) is None and str(here) not in sys.path:
            sys.path.append(str(here))
