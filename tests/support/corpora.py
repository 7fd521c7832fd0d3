"""Small corpora on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def document(id: str, labels: list[str], text: str | None = None) -> dict[str, Any]:
    return {"id": id, "text": f"text of {id}" if text is None else text, "labels": labels}


def write_jsonl(path: Path, rows: list[Any]) -> str:
    """Write one JSON object a line; rows that are strings are written as they are."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)
