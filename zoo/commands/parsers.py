"""A jsonargparse parser with errors in one line."""

from __future__ import annotations

from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from zoo.commands.verbs import condense, fail


class OneLine(ArgumentParser):
    """Prints an error without the usage text and exits with code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A misspelt key must not pass for an abbreviation of another.
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        fail(condense(message))
