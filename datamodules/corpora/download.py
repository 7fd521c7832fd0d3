"""Atomic, resumable downloads."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock

from datamodules.prepare.limits import DEFAULT_LIMITS, Limits
from zoo.core.console import progress_bar
from zoo.core.errors import printable
from zoo.core.files import atomic_write, to_disk

TIMEOUT_SECONDS = 20  # without any data
SLOWEST = 1000  # bytes per second, as the mean of a window
WINDOW_SECONDS = 60
TRIES = 5  # per call, as long as each try makes progress
BLOCK = 1 << 18


class DownloadError(OSError):
    """A download failed; the message is one line."""


def download(url: str, path: Path, sha256: str | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
    """Download `url` to `path`, which appears only when it is complete and its checksum, if given, is right.

    Data is written to `<name>.part` first. After an interrupted transfer, the next call resumes it if the server
    identifies its version of the file; otherwise the partial file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    transfer = Transfer(url, path.with_name(f"{path.name}.part"), limits)
    try:
        with progress_bar(f"Downloading {path.name}") as bar:
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

    def __init__(self, url: str, part: Path, limits: Limits) -> None:
        self.url, self.part, self.limits, self.tag = url, part, limits, part.with_name(f"{part.name}.tag")
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
                length = answer.headers.get("Content-Length", "")
                self.total = start + int(length) if length.isascii() and length.isdigit() else None
                self.limits.check_download(self.total or 0, self.url)
                advance = bar(self.total)
                advance(start)
                with self.part.open("ab" if start else "wb") as file:
                    for block in self._blocks(answer):
                        self.limits.check_download(file.tell() + len(block), self.url)  # it may have no length
                        file.write(block)
                        advance(len(block))
        except urllib.error.HTTPError as error:
            reason = printable(str(error.reason).strip().partition("\n")[0])
            raise DownloadError(f"{self.url}: the server answered {error.code} {reason}") from None
        except (TimeoutError, ConnectionError, http.client.HTTPException):
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                return False
            raise DownloadError(f"{self.url}: cannot be reached: {error.reason}") from None
        return self.total is None or self.size() == self.total

    def _blocks(self, answer: Any) -> Iterator[bytes]:
        """Read the answer, and give up if it comes too slowly, which the timeout of a single read does not notice."""
        began, received = time.monotonic(), 0
        while block := answer.read1(BLOCK):  # `read` would lose data that arrived before a timeout
            yield block
            received += len(block)
            if (seconds := time.monotonic() - began) >= WINDOW_SECONDS:
                if received < SLOWEST * seconds:
                    raise DownloadError(f"{self.url}: too slow: {received / seconds:.0f} bytes per second")
                began, received = time.monotonic(), 0

    def _opened(self) -> Any:
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity"})
        if self.can_resume():
            request.add_header("Range", f"bytes={self.size()}-")
            request.add_header("If-Range", self.tag.read_text())
        try:
            return open_url(request, TIMEOUT_SECONDS)
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


class SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https, and from http to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if (scheme := urlsplit(newurl).scheme) not in {"https", req.type}:
            raise DownloadError(f"{req.full_url}: the server redirects to {scheme}, which is not secure")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request over https or http."""
    if request.type not in ("https", "http"):
        raise DownloadError(f"{request.full_url}: only https and http are supported")
    return urllib.request.build_opener(SecureRedirects).open(request, timeout=timeout)


class KnownChecksums:
    """Checksums of earlier downloads by URL, in a JSON file; as in SSH's known_hosts, the first one is trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, url: str, file: Path) -> None:
        """Raise `DownloadError` if the file differs from the one that was downloaded before."""
        known, found = self._read().get(url), checksum(file)
        if known not in (None, found):
            raise DownloadError(
                f"{url}: its content has changed since the last download (SHA-256 {found[:12]}..., "
                f"not {str(known)[:12]}...); if you trust it, remove its line from {self.path}"
            )

    def add(self, url: str, file: Path) -> None:
        with FileLock(self.path.with_suffix(".lock")):
            known = self._read() | {url: checksum(file)}
            with atomic_write(self.path) as aside:
                aside.write_text(json.dumps(known, indent=1, sort_keys=True), "utf8")

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self.path.read_text("utf8"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise DownloadError(f"{self.path}, with the checksums of downloads, is not valid JSON: repair or remove it")
        return known


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
