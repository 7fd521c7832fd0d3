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

from datamodules.corpora.download import DownloadError, download
from datamodules.corpora.sparse_files import Names
from zoo.core.console import open_with_bar
from zoo.core.errors import first_line

JsonRow = dict[str, Any]  # document with text, labels, and an id if it has one
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = 1 << 20
LEVEL = 6  # of gzip; 9 takes longer and saves little


class DownloadSource(ABC):
    """Place to download splits of a corpus from."""

    url: str  # for messages

    @abstractmethod
    def get(self, downloads: Path) -> None:
        """Download what is not in the folder yet."""

    @abstractmethod
    def unpack(self, downloads: Path, folder: Path) -> None:
        """Convert the download to `train.jsonl.gz`, ... in `folder`."""

    @abstractmethod
    def discard(self, downloads: Path) -> None:
        """Remove complete downloads."""


def fetch(sources: Sequence[DownloadSource], downloads: Path, folder: Path) -> None:
    """Write a corpus into an empty folder from the sources of its splits, or raise `DownloadError`.

    Everything is downloaded before anything is unpacked. The next call resumes interrupted transfers.
    """
    for source in sources:
        with download_errors(source.url):
            source.get(downloads)
    try:
        for source in sources:
            with download_errors(source.url):
                source.unpack(downloads, folder)
    except DownloadError as error:
        if not is_local(error.__cause__):  # the downloads are broken
            for source in sources:
                source.discard(downloads)
        raise


def is_local(cause: BaseException | None) -> bool:
    """Whether an error is due to this machine, not to the file: errors of decompressors have no errno."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


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

    def get(self, downloads: Path) -> None:
        if not self.path(downloads).exists():
            download(self.url, self.path(downloads), self.sha256)

    def discard(self, downloads: Path) -> None:
        self.path(downloads).unlink(missing_ok=True)


@dataclass(frozen=True)
class TextLines(DownloadedFile):
    """One split as a .bz2 of lines `labels<TAB>text` or `id<TAB>labels<TAB>text`, with labels separated by spaces."""

    split: str = "train"

    def unpack(self, downloads: Path, folder: Path) -> None:
        with open_with_bar(self.path(downloads)) as file, bz2.open(file) as lines:
            write_split(folder, self.split, text_rows(lines))


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

    def unpack(self, downloads: Path, folder: Path) -> None:
        wanted = ["X.trn.txt", "Y.trn.npz", "X.tst.txt", "Y.tst.npz", "output-items.txt"]
        with tempfile.TemporaryDirectory(dir=downloads) as aside:
            unpack_tar(self.path(downloads), Path(aside), wanted)
            names = Names.read("label", Path(aside) / "output-items.txt").names
            for split, mark in {"train": "trn", "test": "tst"}.items():
                labels = csr_array(load_npz(Path(aside) / f"Y.{mark}.npz"))
                with open_with_bar(Path(aside) / f"X.{mark}.txt") as lines:
                    write_split(folder, split, labelled(lines, labels, names))


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


def unpack_tar(path: Path, folder: Path, wanted: Sequence[str]) -> None:
    """Extract the files with these names, from any folder of a .tar.gz."""
    with open_with_bar(path) as file, tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            check_member_path(member.name)
            name = PurePosixPath(member.name).name
            if name in wanted and (content := archive.extractfile(member)):
                with content, (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out)
        while archive.fileobj and archive.fileobj.read(BLOCK):  # read to the end to verify the checksum
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

    def unpack(self, downloads: Path, folder: Path) -> None:
        with zipfile.ZipFile(self.path(downloads)) as archive:
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

    def get(self, downloads: Path) -> None:
        """Check the connection, since `datasets` would retry for a minute without a network."""
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise OSError("HF_HUB_OFFLINE is set")
        urllib.request.urlopen(self.hub, timeout=5).close()

    def unpack(self, downloads: Path, folder: Path) -> None:
        import datasets

        for split, rows in datasets.load_dataset(self.name, revision=self.revision).items():
            write_split(folder, self.splits[split], map(self.document, rows))

    def discard(self, downloads: Path) -> None:
        """Nothing to remove: `datasets` has its own cache."""
