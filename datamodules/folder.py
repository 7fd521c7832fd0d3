"""Corpora that have a name: looked for in a folder, then fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from datamodules.archives import Origin, fetch
from datamodules.base import CorpusMissingError, TextDataModule
from datamodules.download import DownloadError
from datamodules.errors import UserError
from datamodules.files import to_disk
from datamodules.label_texts import SUFFIXES
from datamodules.prepare import Corpus, cache_errors
from datamodules.progress import note
from datamodules.published import Published
from datamodules.readers import Format
from datamodules.statistics import compare, of_prepared
from datamodules.text import file_corpus, files_in

NO_SOURCE = "it cannot be downloaded automatically"


class NamedCorpus(TextDataModule):
    """A corpus found in `root`, in $ZOO_DATA/<folder>, where an earlier run has fetched it, or on the net.

    Args:
        root: folder with train, val and test files (jsonl, csv, tsv, parquet; also packed).
        download: whether to try the network where no folder has it.
    """

    folder: str  # name of the corpus and of its folder
    how_to_get: str  # for the error message
    sources: ClassVar[tuple[tuple[Origin, ...], ...]] = ()  # tried in this order; the parts of one make a corpus
    published: ClassVar[tuple[Published, ...]] = ()  # sizes, by paper
    label_sep: str | None = None  # between labels that a file of the folder writes as one string

    def __init__(self, root: str | None = None, download: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root, self.download = root, download
        self.place = Path()  # where the corpus was found

    def corpus_in(self, folder: Path) -> Corpus | None:
        """The corpus in a folder; None where it has no training file."""
        files = files_in(folder)
        return file_corpus(self.folder, files, Format(label_sep=self.label_sep), self.max_bad_rows) if files else None

    def find_corpus(self) -> Corpus:
        fetched = self.cache_dir / "corpora" / self.folder
        places = [Path(self.root).expanduser()] if self.root else []
        if places and not places[0].is_dir():
            raise UserError(f"no such folder: {self.root} (--data.root)")
        if data := os.environ.get("ZOO_DATA"):
            places.append(Path(data).expanduser() / self.folder)
        for self.place in [*places, fetched]:
            if corpus := self.corpus_in(self.place):
                return corpus
        reason = self._fetch_once(fetched) if self.download else "downloading is off"
        if reason is None and (corpus := self.corpus_in(fetched)):
            return corpus
        looked = ", ".join(str(place) for place in places) or "no folder (neither --data.root nor $ZOO_DATA is set)"
        reason = reason or f"there are no training documents in {fetched}"
        raise CorpusMissingError(f"no corpus {self.folder}: looked in {looked}; {reason}. {self.how_to_get}")

    def setup(self, stage: str) -> None:
        """Say where the corpus is not as papers have published it."""
        for line in self.deviations():
            note(f"{self.corpus_name}: {line}")

    def deviations(self) -> list[str]:
        """From the published row that fits best; a part of a corpus is not compared."""
        if self.is_sample or self.settings.limit_train is not None:
            return []
        compared = compare(of_prepared(self.prepared, "val" in self.corpus.sources), self.published)
        return compared[1] if compared else []

    def label_file(self) -> Path | None:
        """The one that is given, or `labels.json.gz` or the like in the folder of the corpus."""
        beside = [] if self.is_sample else [self.place / f"labels{suffix}" for suffix in SUFFIXES]
        return super().label_file() or next((file for file in beside if file.is_file()), None)

    def _fetch_once(self, folder: Path) -> str | None:
        """Why the corpus could not be had; None if it was. One process fetches, the others wait."""
        with cache_errors(self.cache_dir):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(self.cache_dir / f"{self.folder}.lock"):
                    if not folder.exists():
                        self.fetch(folder)
            except DownloadError as error:
                return str(error)
        return None

    def fetch(self, folder: Path) -> None:
        """Make the folder from the first source that has the corpus, or raise `DownloadError` with all reasons."""
        downloads, failures = folder.with_name(f"{folder.name}.download"), []
        for source in self.sources:
            try:
                with folder_written_whole(folder) as aside:
                    fetch(source, downloads, aside)
                shutil.rmtree(downloads, ignore_errors=True)  # with what other sources have sent of theirs
                return
            except DownloadError as error:
                failures.append(str(error))
            finally:
                with suppress(OSError):  # not empty: a transfer that broke off can go on another time
                    downloads.rmdir()
        reasons = f"could not be downloaded ({'; '.join(failures)})" if failures else NO_SOURCE
        raise DownloadError(reasons)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A folder aside to write to; it takes the final name when the block has ended well and all is on the disk."""
    for left in folder.parent.glob(f".{folder.name}.*"):  # by a process that was killed; we hold its lock
        shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir()
    try:
        yield aside
        for file in aside.iterdir():
            to_disk(file)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
