"""Atomic, resumable downloads."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.core.console import progress_bar
from zoo.core.files import to_disk

TIMEOUT_SECONDS = 20  # without any data
TRIES = 5  # per call, as long as each try makes progress
BLOCK = 1 << 18


class DownloadError(OSError):
    """A download failed; the message is one line."""


def download(url: str, path: Path, sha256: str | None = None, title: str | None = None) -> None:
    """Download `url` to `path`, which appears only when it is complete and its checksum, if given, is right.

    Data is written to `<name>.part` first. After an interrupted transfer, the next call resumes it if the server
    identifies its version of the file; otherwise the partial file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    transfer = Transfer(url, path.with_name(f"{path.name}.part"))
    try:
        with progress_bar(title or f"Downloading {path.name}") as bar:
            for attempt in range(TRIES):
                before = transfer.size()
                if transfer.run(bar):
                    break
                if attempt == TRIES - 1 or transfer.size() <= before:
                    raise DownloadError(f"{url}: connection lost after {transfer.progress()}")
        if sha256 is not None and (found := checksum(transfer.part)) != sha256:
            transfer.discard()
            raise DownloadError(f"{url}: unexpected content: its SHA-256 starts with {found[:12]}")
        to_disk(transfer.part)
        os.replace(transfer.part, path)
    finally:
        if not transfer.can_resume():
            transfer.discard()


class Transfer:
    """Partial download of a file, with a tag file that identifies the server's version."""

    def __init__(self, url: str, part: Path) -> None:
        self.url, self.part, self.tag = url, part, part.with_name(f"{part.name}.tag")
        self.total: int | None = None

    def size(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def can_resume(self) -> bool:
        return self.size() > 0 and self.tag.is_file()

    def discard(self) -> None:
        for file in (self.part, self.tag):
            file.unlink(missing_ok=True)

    def progress(self) -> str:
        of = f" of {self.total:,}" if self.total else ""
        return f"{self.size():,}{of} bytes"

    def run(self, bar: Callable[[float | None], Callable[[float], None]]) -> bool:
        """Download the rest; return False if the connection ends early."""
        try:
            with self._opened() as answer:
                start = self._start(answer)
                length = answer.headers.get("Content-Length")
                self.total = start + int(length) if length and length.isdigit() else None
                advance = bar(self.total)
                advance(start)
                with self.part.open("ab" if start else "wb") as file:
                    while block := answer.read1(BLOCK):  # `read` would lose data that arrived before a timeout
                        file.write(block)
                        advance(len(block))
        except urllib.error.HTTPError as error:
            raise DownloadError(f"{self.url}: the server answered {error.code} {error.reason}") from None
        except (TimeoutError, ConnectionError, http.client.HTTPException):
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                return False
            raise DownloadError(f"{self.url}: cannot be reached: {error.reason}") from None
        return self.total is None or self.size() == self.total

    def _opened(self) -> Any:
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity"})
        if self.can_resume():
            request.add_header("Range", f"bytes={self.size()}-")
            request.add_header("If-Range", self.tag.read_text())
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not self.can_resume():
                raise
            error.close()
            self.discard()  # the file on the server is now shorter than the partial download
            return self._opened()

    def _start(self, answer: Any) -> int:
        """Return the offset at which the answer starts; save the file's tag if it starts at 0."""
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            if answer.headers.get("Content-Range", "").startswith(f"bytes {self.size()}-"):
                return self.size()
            self.discard()
            raise DownloadError(f"{self.url}: the server sent a different range than requested")
        self.discard()
        strong = answer.headers.get("ETag", "")
        if tag := strong if strong.startswith('"') else answer.headers.get("Last-Modified"):
            self.tag.write_text(tag)
        return 0


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
