"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path aside to write to; it takes the final name when the block has ended well."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
