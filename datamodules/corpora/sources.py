"""Download sources and converters of public corpora."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import re
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from scipy.sparse import csr_array, load_npz

from datamodules.corpora.download import DownloadError, KnownChecksums, download, open_url
from datamodules.corpora.sparse_files import Names
from datamodules.prepare.limits import DEFAULT_LIMITS, Limits, limited
from datamodules.prepare.opening import RowError, limited_lines
from zoo.core.console import open_with_bar
from zoo.core.errors import UserError, first_line

JsonRow = dict[str, Any]  # document with text, labels, and an id if it has one
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = 1 << 20
LEVEL = 6  # of gzip; 9 takes longer and saves little


class DownloadSource(ABC):
    """Place to download splits of a corpus from."""

    url: str  # for messages

    @abstractmethod
    def get(self, downloads: Path, limits: Limits) -> None:
        """Download what is not in the folder yet."""

    @abstractmethod
    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        """Convert the download to `train.jsonl.gz`, ... in `folder`."""

    @abstractmethod
    def discard(self, downloads: Path) -> None:
        """Remove complete downloads."""

    @abstractmethod
    def trust(self, downloads: Path) -> None:
        """Remember the checksums of complete downloads, after they could be unpacked."""


def fetch(sources: Sequence[DownloadSource], downloads: Path, folder: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Write a corpus into an empty folder from the sources of its splits, or raise `DownloadError`.

    Everything is downloaded before anything is unpacked. The next call resumes interrupted transfers.
    """
    for source in sources:
        with download_errors(source.url):
            source.get(downloads, limits)
    try:
        for source in sources:
            with download_errors(source.url):
                source.unpack(downloads, folder, limits)
        for source in sources:
            with download_errors(source.url):
                source.trust(downloads)
    except DownloadError as error:
        if not is_local(error.__cause__):  # the downloads are broken
            for source in sources:
                source.discard(downloads)
        raise


def is_local(cause: BaseException | None) -> bool:
    """Whether an error is due to this machine or its limits, not to the file: errors of decompressors have no errno."""
    return isinstance(cause, MemoryError | UserError) or (isinstance(cause, OSError) and cause.errno is not None)


@contextmanager
def download_errors(url: str) -> Iterator[None]:
    """Turn any error except a full disk into a one-line `DownloadError` with the URL."""
    try:
        yield
    except DownloadError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        reason = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)
        raise DownloadError(f"{url}: {reason}") from error


@dataclass(frozen=True)
class DownloadedFile(DownloadSource):
    """Single file that is downloaded, and then unpacked."""

    url: str
    sha256: str | None = None

    def path(self, downloads: Path) -> Path:
        return downloads / re.sub(r"[^\w.-]+", "_", self.url.rpartition("/")[2])

    def known(self, downloads: Path) -> KnownChecksums:
        return KnownChecksums(downloads.with_name("known_downloads.json"))

    def get(self, downloads: Path, limits: Limits) -> None:
        if not self.path(downloads).exists():
            download(self.url, self.path(downloads), self.sha256, limits)
        try:
            self.known(downloads).check(self.url, self.path(downloads))
        except DownloadError:
            self.discard(downloads)
            raise

    def discard(self, downloads: Path) -> None:
        self.path(downloads).unlink(missing_ok=True)

    def trust(self, downloads: Path) -> None:
        self.known(downloads).add(self.url, self.path(downloads))


@dataclass(frozen=True)
class TextLines(DownloadedFile):
    """One split as a .bz2 of lines `labels<TAB>text` or `id<TAB>labels<TAB>text`, with labels separated by spaces."""

    split: str = "train"

    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        with open_with_bar(self.path(downloads)) as file, bz2.open(file) as raw:
            lines = limited_lines(limited(raw, file.tell, self.path(downloads).name, limits), limits)
            write_split(folder, self.split, text_rows(map(checked, lines)))


def checked(line: bytes | RowError) -> bytes:
    """Refuse a line that is too long."""
    if isinstance(line, RowError):
        raise ValueError(f"a line is {line}")
    return line


def text_rows(lines: Iterable[bytes]) -> Iterator[JsonRow]:
    """Parse lines of `TextLines`; the first line determines whether there are ids."""
    columns = 0
    for number, line in enumerate(lines, 1):
        if not (text := line.decode(errors="replace").rstrip("\r\n")):
            continue
        columns = columns or text.count("\t") + 1
        fields = text.split("\t", columns - 1)
        if columns not in (2, 3) or len(fields) < columns:
            raise ValueError(f"line {number:,} is not labels<TAB>text or id<TAB>labels<TAB>text")
        *id, labels, text = fields
        yield {**({"id": id[0]} if id else {}), "text": text, "labels": labels.split()}


@dataclass(frozen=True)
class PecosTar(DownloadedFile):
    """A .tar.gz of PECOS, with one text per line in `X.{trn,tst}.txt` and sparse label matrices `Y.{trn,tst}.npz`.

    Labels are named by `output-items.txt`, or by their numbers if these names are not unique.
    """

    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        wanted = ["X.trn.txt", "Y.trn.npz", "X.tst.txt", "Y.tst.npz", "output-items.txt"]
        with tempfile.TemporaryDirectory(dir=downloads) as aside:
            unpack_tar(self.path(downloads), Path(aside), wanted, limits)
            names = Names.read("label", Path(aside) / "output-items.txt").names
            for split, mark in {"train": "trn", "test": "tst"}.items():
                labels = read_npz(Path(aside) / f"Y.{mark}.npz", limits)
                with open_with_bar(Path(aside) / f"X.{mark}.txt") as file:
                    lines = map(checked, limited_lines(file, limits))
                    write_split(folder, split, labelled(lines, labels, names))


def read_npz(path: Path, limits: Limits) -> csr_array:
    """Read a sparse matrix, and check that its indices are in range."""
    with zipfile.ZipFile(path) as archive:
        limits.check_zip(archive, path.name)
    matrix = csr_array(load_npz(path))
    matrix.check_format(full_check=True)
    return matrix


def labelled(lines: Iterable[bytes], labels: csr_array, names: list[str]) -> Iterator[JsonRow]:
    """Join texts, one per line, with the rows of a label matrix."""
    if names and len(names) != labels.shape[1]:
        raise ValueError(f"there are {len(names):,} names for {labels.shape[1]:,} labels")
    labels.eliminate_zeros()
    rows = (labels.indices[start:end] for start, end in pairwise(labels.indptr))
    for line, numbers in zip_longest(lines, rows):
        if line is None or numbers is None:
            raise ValueError("the numbers of texts and of label rows differ")
        text = line.decode(errors="replace").rstrip("\r\n")
        yield {"text": text, "labels": [names[i] if names else str(i) for i in numbers]}


def unpack_tar(path: Path, folder: Path, wanted: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> None:
    """Extract the files with these names, from any folder of a .tar.gz."""
    with (
        open_with_bar(path) as file,
        limited(gzip.GzipFile(fileobj=file), file.tell, path.name, limits) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for count, member in enumerate(archive, 1):
            limits.check_members(count, path.name)
            check_member_path(member.name)
            name = PurePosixPath(member.name).name
            if name in wanted and (content := archive.extractfile(member)):
                with content, (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out)
        while stream.read(BLOCK):  # read to the end to verify the checksum
            pass
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise ValueError(f"the archive lacks {', '.join(missing)}")


def check_member_path(name: str) -> None:
    """Reject archives with paths outside their folder: they are malicious."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the archive contains {name!r}, a path outside its folder")


@dataclass(frozen=True)
class SparseZip(DownloadedFile):
    """A .zip of the Extreme Classification Repository, with features in `<name>_train.txt` and `<name>_test.txt`."""

    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        with zipfile.ZipFile(self.path(downloads)) as archive:
            limits.check_zip(archive, self.path(downloads).name)
            for split, name in split_members(archive, ("train", "test"), ".txt").items():
                with archive.open(name) as raw, gzip.open(folder / f"{split}.xmc.gz", "wb", LEVEL) as out:
                    shutil.copyfileobj(raw, out)


def split_members(archive: zipfile.ZipFile, splits: Sequence[str], suffix: str) -> dict[str, str]:
    """Find the member of each split, such as `train.txt` or `eurlex_train.txt`."""
    for name in archive.namelist():
        check_member_path(name)
    stems = {PurePosixPath(name).stem: name for name in archive.namelist() if name.endswith(suffix)}
    found = {s: stems[stem] for s in splits for stem in stems if re.fullmatch(rf"([^.].*_)?{s}", stem)}
    if missing := [split for split in splits if split not in found]:
        raise ValueError(f"the archive contains {sorted(stems)}, but no {', '.join(missing)}")
    return found


def write_split(folder: Path, split: str, rows: Iterable[JsonRow]) -> None:
    """Write `<split>.jsonl.gz`; raise `ValueError` if there are no documents."""
    documents = iter(rows)
    if (first := next(documents, None)) is None:
        raise ValueError(f"there are no documents for {split}")
    with gzip.open(folder / f"{split}.jsonl.gz", "wt", LEVEL, encoding="utf8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in chain([first], documents))


@dataclass(frozen=True)
class HubRows(DownloadSource):
    """Dataset of the Hugging Face hub, whose rows `document` converts."""

    name: str
    revision: str
    document: Callable[[JsonRow], JsonRow]
    splits: dict[str, str]  # our split names by the hub's
    hub: str = "https://huggingface.co"

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"{self.hub}/datasets/{self.name}"

    def get(self, downloads: Path, limits: Limits) -> None:
        """Check the connection, since `datasets` would retry for a minute without a network."""
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise OSError("HF_HUB_OFFLINE is set")
        open_url(urllib.request.Request(self.hub), timeout=5).close()

    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        import datasets

        for split, rows in datasets.load_dataset(self.name, revision=self.revision).items():
            write_split(folder, self.splits[split], map(self.document, rows))

    def discard(self, downloads: Path) -> None:
        """Nothing to remove: `datasets` has its own cache."""

    def trust(self, downloads: Path) -> None:
        """Nothing to remember: `datasets` verifies what it downloads."""
