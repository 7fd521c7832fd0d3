"""Files that settings name, as given or under $ZOO_DATA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from zoo.core.errors import UserError


def find_file(path: str) -> Path | None:
    """Find a file at the path as given, or under $ZOO_DATA; None if it is in neither."""
    places = [Path(path).expanduser()]
    if root := os.environ.get("ZOO_DATA"):
        places.append(Path(root).expanduser() / path)
    return next((place for place in places if place.is_file()), None)


def find_files(given: Mapping[str, str | None]) -> dict[str, Path]:
    """Find the files of settings that are not None, or raise `UserError` with the name of the setting."""
    found = {}
    for setting, path in given.items():
        if path is not None:
            if (place := find_file(path)) is None:
                raise UserError(f"no such file: {path} (`{setting}`), neither as given nor under $ZOO_DATA")
            found[setting] = place
    return found
