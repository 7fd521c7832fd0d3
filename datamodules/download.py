"""Files of the net: whole and right, or not there; a transfer that breaks off goes on where it was."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datamodules.files import to_disk
from datamodules.progress import progress_bar

PATIENCE = 20  # seconds without a byte
TRIES = 5  # times that a transfer may break off, as long as each brings something
BLOCK = 1 << 18


class DownloadError(OSError):
    """Why a file could not be had, in one line."""


def download(url: str, path: Path, sha256: str | None = None, title: str | None = None) -> None:
    """Fetch `url` into `path`, which is there only once all of it is, and has the checksum if one is known.

    What has come lies beside it as `<name>.part` until then. It stays after a transfer that broke off if the server
    can tell whether the file is still the same, and the next call goes on from there; otherwise it is removed.
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
                    raise DownloadError(f"{url}: the connection broke off after {transfer.progress()}")
        if sha256 is not None and (found := checksum(transfer.part)) != sha256:
            transfer.forget()
            raise DownloadError(f"{url}: not the file that was expected: its SHA-256 begins with {found[:12]}")
        to_disk(transfer.part)
        os.replace(transfer.part, path)
    finally:
        if not transfer.can_go_on():
            transfer.forget()


class Transfer:
    """A file that is on its way, and what tells whether the server still has the same one."""

    def __init__(self, url: str, part: Path) -> None:
        self.url, self.part, self.tag = url, part, part.with_name(f"{part.name}.tag")
        self.total: int | None = None

    def size(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def can_go_on(self) -> bool:
        return self.size() > 0 and self.tag.is_file()

    def forget(self) -> None:
        for file in (self.part, self.tag):
            file.unlink(missing_ok=True)

    def progress(self) -> str:
        of = f" of {self.total:,}" if self.total else ""
        return f"{self.size():,}{of} bytes"

    def run(self, bar: Callable[[float | None], Callable[[float], None]]) -> bool:
        """Fetch what is missing; False if the connection ends before all of it is there."""
        try:
            with self._opened() as answer:
                start = self._start(answer)
                length = answer.headers.get("Content-Length")
                self.total = start + int(length) if length and length.isdigit() else None
                advance = bar(self.total)
                advance(start)
                with self.part.open("ab" if start else "wb") as file:
                    while block := answer.read1(BLOCK):  # what is there: `read` would lose it when time is up
                        file.write(block)
                        advance(len(block))
        except urllib.error.HTTPError as error:
            raise DownloadError(f"{self.url}: the server answers {error.code} {error.reason}") from None
        except (TimeoutError, ConnectionError, http.client.HTTPException):
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                return False
            raise DownloadError(f"{self.url}: cannot be reached: {error.reason}") from None
        return self.total is None or self.size() == self.total

    def _opened(self) -> Any:
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity"})
        if self.can_go_on():
            request.add_header("Range", f"bytes={self.size()}-")
            request.add_header("If-Range", self.tag.read_text())
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not self.can_go_on():
                raise
            error.close()
            self.forget()  # it has become shorter than what we have
            return self._opened()

    def _start(self, answer: Any) -> int:
        """The place from which on the server sends, and its mark of the file for the next time."""
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            if answer.headers.get("Content-Range", "").startswith(f"bytes {self.size()}-"):
                return self.size()
            self.forget()
            raise DownloadError(f"{self.url}: the server sends another part than it was asked for")
        self.forget()
        strong = answer.headers.get("ETag", "")
        if tag := strong if strong.startswith('"') else answer.headers.get("Last-Modified"):
            self.tag.write_text(tag)
        return 0


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
