"""Integrity of prepared corpora: a manifest holds the size and the checksum of every file.

Everything that indexes (token ids, label ids, offsets) was in range when it was written, so files with the right
checksum cannot be out of range. CRC-32 reads 2 GB/s, little more than a check of the ranges alone would need, and also
finds ids that are wrong but in range.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from zlib import crc32

from zoo.core.errors import first_line

MANIFEST = "manifest.json"
BLOCK = 1 << 20


def write_manifest(folder: Path, name: str, files: list[str]) -> None:
    """Record the files of a complete folder, and the name that the folder will have."""
    content = {"folder": name, "files": {file: measure(folder / file) for file in files}}
    (folder / MANIFEST).write_text(json.dumps(content), "utf8")


def find_defect(folder: Path, files: list[str]) -> str | None:
    """Describe the first file that is not as it was written; "" if there is no folder, None if all is well."""
    if not os.path.lexists(folder):
        return ""
    try:
        content = json.loads((folder / MANIFEST).read_text("utf8"))
        if content["folder"] != folder.name:
            return f"its {MANIFEST} belongs to {content['folder']}"
        return next((f"{file} has changed" for file in files if measure(folder / file) != content["files"][file]), None)
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror or error}"
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return f"{MANIFEST} is not valid: {first_line(error)}"


def measure(file: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    size = checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            size, checksum = size + len(block), crc32(block, checksum)
    return [size, checksum]
