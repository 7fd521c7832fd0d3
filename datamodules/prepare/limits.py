"""Limits on sizes, so that a broken or malicious file ends in one line instead of full memory or a full disk."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zoo.core.errors import UserError, check_low

MB, GB = 10**6, 10**9
LARGEST = 2**31 - 2  # for libraries that count in 32 bits
RATIO_FROM = 64 * MB  # unpacked bytes from which the compression ratio counts; short files may compress very well


@dataclass(frozen=True)
class Limits:
    """Largest sizes of what is read, unpacked and downloaded.

    Args:
        line_mb: longest line of a text file; a longer line is a bad row.
        text_mb: longest text of a document, in millions of characters; a document with a longer one is a bad row.
        unpacked_gb: size of a compressed file or an archive after unpacking.
        ratio: size of compressed data after unpacking, divided by its size before.
        members: number of files in an archive.
        download_gb: size of a downloaded file.
    """

    line_mb: float = 64
    text_mb: float = 16
    # What follows ends in an error, so cached rows do not depend on it: it is left out of the cache key.
    unpacked_gb: float = field(default=100, repr=False)
    ratio: float = field(default=200, repr=False)
    members: int = field(default=10_000, repr=False)
    download_gb: float = field(default=50, repr=False)

    def __post_init__(self) -> None:
        check_low(0, **{f"limits.{name}": value for name, value in vars(self).items()})

    @property
    def line_bytes(self) -> int:
        return int(min(self.line_mb * MB, LARGEST))

    @property
    def text_characters(self) -> int:
        return int(min(self.text_mb * MB, LARGEST))

    def check_unpacked(self, size: int, packed: int, where: object) -> None:
        """Raise `UserError` if `packed` bytes that unpack to `size` exceed the limits."""
        if size > self.unpacked_gb * GB:
            raise UserError(f"{where} unpacks to over {self.unpacked_gb:g} GB; allow more with `limits.unpacked_gb`")
        if size > RATIO_FROM and size > self.ratio * packed:
            what = f"over {self.ratio:g} times its size, like a decompression bomb"
            raise UserError(f"{where} unpacks to {what}; allow more with `limits.ratio`")

    def check_members(self, count: int, where: object) -> None:
        if count > self.members:
            raise UserError(f"{where} contains over {self.members:,} files; allow more with `limits.members`")

    def check_zip(self, archive: zipfile.ZipFile, where: object) -> None:
        """Check the sizes that a .zip declares; `zipfile` never unpacks more than these."""
        members = archive.infolist()
        self.check_members(len(members), where)
        self.check_unpacked(sum(m.file_size for m in members), sum(m.compress_size for m in members), where)

    def check_download(self, size: int, url: str) -> None:
        if size > self.download_gb * GB:
            raise UserError(f"{url} is larger than {self.download_gb:g} GB; allow more with `limits.download_gb`")


DEFAULT_LIMITS = Limits()


class LimitedStream(io.RawIOBase):
    """Decompressed stream that is checked against the limits while it is read.

    Args:
        stream: decompressed stream.
        packed: returns the number of compressed bytes read so far.
        where: name of the file, for error messages.
    """

    def __init__(self, stream: Any, packed: Callable[[], int], where: object, limits: Limits) -> None:
        self.stream, self.packed, self.where, self.limits = stream, packed, where, limits
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.stream.readinto(buffer)
        self.size += count
        self.limits.check_unpacked(self.size, self.packed(), self.where)
        return count


def limited(stream: Any, packed: Callable[[], int], where: object, limits: Limits) -> io.BufferedReader:
    return io.BufferedReader(LimitedStream(stream, packed, where, limits), 1 << 18)
