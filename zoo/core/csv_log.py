"""CSV files that a run appends rows to."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.core.files import atomic_write


def read_log(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read the columns and the complete rows of a CSV file; a killed process may leave an incomplete last line."""
    text = file.read_text("utf8", errors="replace") if file.is_file() else ""
    reader = csv.DictReader(text.split("\n")[:-1])
    rows = [row for row in reader if None not in row and None not in row.values()]
    return list(reader.fieldnames or []), rows


def write_log(file: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    with atomic_write(file) as temporary, temporary.open("w", encoding="utf8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)
