"""Where corpora lie on the net, and how what lies there becomes files of the zoo."""

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

from datamodules.download import DownloadError, download
from datamodules.errors import first_line
from datamodules.progress import open_with_bar
from datamodules.xmc import Names

Row = dict[str, Any]  # a document: text, labels, and an id if it has one
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = 1 << 20
LEVEL = 6  # of gzip: 9 takes longer and hardly saves anything


class Origin(ABC):
    """A place on the net that has splits of a corpus."""

    url: str  # for messages

    @abstractmethod
    def get(self, downloads: Path) -> None:
        """Fetch what is not in the folder yet."""

    @abstractmethod
    def unpack(self, downloads: Path, folder: Path) -> None:
        """Write `train.jsonl.gz`, ... into the other folder."""

    @abstractmethod
    def discard(self, downloads: Path) -> None:
        """Remove what was fetched whole."""


def fetch(source: Sequence[Origin], downloads: Path, folder: Path) -> None:
    """Write a corpus into an empty folder from the places that have it together, or raise `DownloadError`.

    All is fetched before anything is unpacked: what a broken transfer leaves, the next call goes on from.
    """
    for origin in source:
        with one_line(origin.url):
            origin.get(downloads)
    try:
        for origin in source:
            with one_line(origin.url):
                origin.unpack(downloads, folder)
    except DownloadError as error:
        if not is_local(error.__cause__):  # what is broken is of no use
            for origin in source:
                origin.discard(downloads)
        raise


def is_local(cause: BaseException | None) -> bool:
    """Whether this machine is to blame, and not the file: errors of the packing libraries have no number."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


@contextmanager
def one_line(url: str) -> Iterator[None]:
    """Whatever a network, a proxy or a changed file may raise, with its address; but a full disk is not its fault."""
    try:
        yield
    except DownloadError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        reason = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)
        raise DownloadError(f"{url}: {reason}") from error


@dataclass(frozen=True)
class Packed(Origin):
    """A file that is downloaded whole, and then unpacked."""

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
class TextLines(Packed):
    """One split as bz2: lines `labels<TAB>text` or `id<TAB>labels<TAB>text`, with spaces between labels."""

    split: str = "train"

    def unpack(self, downloads: Path, folder: Path) -> None:
        with open_with_bar(self.path(downloads)) as file, bz2.open(file) as lines:
            write_split(folder, self.split, text_rows(lines))


def text_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """Documents of lines that have an id or have none; the first one tells."""
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
class PecosTar(Packed):
    """A tar.gz with texts `X.{trn,tst}.txt`, one on each line, and their labels as sparse matrices `Y.{trn,tst}.npz`.

    Labels have the names in `output-items.txt`, or numbers where these do not tell them apart.
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


def labelled(lines: Iterable[bytes], labels: csr_array, names: list[str]) -> Iterator[Row]:
    """Documents of texts, one on each line, and the rows of a matrix."""
    if names and len(names) != labels.shape[1]:
        raise ValueError(f"there are {len(names):,} names for {labels.shape[1]:,} labels")
    labels.eliminate_zeros()
    rows = (labels.indices[start:end] for start, end in pairwise(labels.indptr))
    for line, numbers in zip_longest(lines, rows):
        if line is None or numbers is None:
            raise ValueError("there are not as many texts as rows of labels")
        text = line.decode(errors="replace").rstrip("\r\n")
        yield {"text": text, "labels": [names[i] if names else str(i) for i in numbers]}


def unpack_tar(path: Path, folder: Path, wanted: Sequence[str]) -> None:
    """Put the files of these names into a folder, wherever they are in a tar.gz."""
    with open_with_bar(path) as file, tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            refuse_climbing(member.name)
            name = PurePosixPath(member.name).name
            if name in wanted and (content := archive.extractfile(member)):
                with content, (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out)
        while archive.fileobj and archive.fileobj.read(BLOCK):  # the checksum is at the very end
            pass
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise ValueError(f"the archive lacks {', '.join(missing)}")


def refuse_climbing(name: str) -> None:
    """An archive with a path out of its folder was made to do harm: nothing of it is used."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the archive holds {name!r}, which leads out of its folder")


@dataclass(frozen=True)
class SparseZip(Packed):
    """A zip of the extreme classification repository: features in `<name>_train.txt` and `<name>_test.txt`."""

    def unpack(self, downloads: Path, folder: Path) -> None:
        with zipfile.ZipFile(self.path(downloads)) as archive:
            for split, name in split_members(archive, ("train", "test"), ".txt").items():
                with archive.open(name) as raw, gzip.open(folder / f"{split}.xmc.gz", "wb", LEVEL) as out:
                    shutil.copyfileobj(raw, out)


def split_members(archive: zipfile.ZipFile, splits: Sequence[str], suffix: str) -> dict[str, str]:
    """The member of each split, called by its name or by one that ends with it, as `eurlex_train.txt`."""
    for name in archive.namelist():
        refuse_climbing(name)
    stems = {PurePosixPath(name).stem: name for name in archive.namelist() if name.endswith(suffix)}
    found = {s: stems[stem] for s in splits for stem in stems if re.fullmatch(rf"([^.].*_)?{s}", stem)}
    if missing := [split for split in splits if split not in found]:
        raise ValueError(f"the archive holds {sorted(stems)}, but no {', '.join(missing)}")
    return found


def write_split(folder: Path, split: str, rows: Iterable[Row]) -> None:
    """One of the zoo's own files; a split without documents is refused."""
    documents = iter(rows)
    if (first := next(documents, None)) is None:
        raise ValueError(f"there are no documents for {split}")
    with gzip.open(folder / f"{split}.jsonl.gz", "wt", LEVEL, encoding="utf8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in chain([first], documents))


@dataclass(frozen=True)
class HubRows(Origin):
    """A data set of the Hugging Face hub; `document` makes of its rows what the zoo reads."""

    name: str
    revision: str
    document: Callable[[Row], Row]
    splits: dict[str, str]  # the zoo's name of each
    hub: str = "https://huggingface.co"

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"{self.hub}/datasets/{self.name}"

    def get(self, downloads: Path) -> None:
        """Ask once: the library would try for a minute on a machine without a network."""
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise OSError("HF_HUB_OFFLINE is set")
        urllib.request.urlopen(self.hub, timeout=5).close()

    def unpack(self, downloads: Path, folder: Path) -> None:
        import datasets

        for split, rows in datasets.load_dataset(self.name, revision=self.revision).items():
            write_split(folder, self.splits[split], map(self.document, rows))

    def discard(self, downloads: Path) -> None:
        """The library keeps what it has fetched in a cache of its own."""
