"""Base class of named corpora, which are searched for in folders and downloaded if necessary."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from datamodules.base import CorpusMissingError, TextDataModule
from datamodules.corpora.download import DownloadError
from datamodules.corpora.sources import DownloadSource, fetch
from datamodules.corpora.text_files import files_in
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.file_source import file_corpus
from datamodules.prepare.label_texts import SUFFIXES
from datamodules.prepare.preparation import cache_errors
from datamodules.prepare.readers import Format
from datamodules.tools.statistics import Published, compare, of_prepared
from zoo.core.console import note
from zoo.core.errors import UserError
from zoo.core.files import folder_written_whole

NO_SOURCE = "it cannot be downloaded automatically"


class NamedCorpus(TextDataModule):
    """Corpus with a name: found in `root`, or else in $ZOO_DATA/<folder> or in the cache, or else downloaded.

    Args:
        root: folder with train, val and test files (jsonl, csv, tsv, parquet; may be compressed); only this folder is
            searched if it is given.
        download: whether to download the corpus if no folder has it.
    """

    folder: str  # name of the corpus and of its folder
    how_to_get: str  # advice in the error message
    sources: ClassVar[tuple[tuple[DownloadSource, ...], ...]] = ()  # alternatives, in order; each a tuple of files
    published: ClassVar[tuple[Published, ...]] = ()  # statistics by paper
    label_sep: str | None = None  # separator of labels in a string

    def __init__(self, root: str | None = None, download: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root, self.download = root, download
        self.place = Path()  # folder in which the corpus was found

    def corpus_in(self, folder: Path) -> Corpus | None:
        """Open the corpus in a folder; None if it has no training file."""
        files = files_in(folder)
        return (
            file_corpus(self.folder, files, Format(label_sep=self.label_sep, limits=self.limits), self.max_bad_rows)
            if files
            else None
        )

    def find_corpus(self) -> Corpus:
        fetched = self.cache_dir / "corpora" / self.folder
        if self.root:
            return self._corpus_in_root(self.root)
        data = os.environ.get("ZOO_DATA")
        places = [Path(data).expanduser() / self.folder] if data else []
        for self.place in [*places, fetched]:
            if corpus := self._read_corpus(self.place):
                return corpus
        reason = self._fetch_once(fetched) if self.download else "downloading is off"
        if reason is None and (corpus := self._read_corpus(fetched)):
            return corpus
        looked = ", ".join(str(place) for place in places) or "no folder (neither `root` nor $ZOO_DATA is set)"
        reason = reason or f"there are no training documents in {fetched}"
        raise CorpusMissingError(f"no corpus {self.folder}: looked in {looked}; {reason}. {self.how_to_get}")

    def _corpus_in_root(self, root: str) -> Corpus:
        """Open the corpus in the folder that was given; another one, or a sample, must not take its place."""
        self.place = Path(root).expanduser()
        if corpus := self._read_corpus(self.place):
            return corpus
        if not self.place.is_dir():
            raise UserError(f"no such folder: {root} (`root`)")
        raise UserError(f"`root={root}` does not contain the corpus {self.folder}: no training file. {self.how_to_get}")

    def _read_corpus(self, folder: Path) -> Corpus | None:
        try:
            return self.corpus_in(folder)
        except OSError as error:  # such as a folder that may not be read
            raise UserError(f"{folder} cannot be read: {error.strerror or error}") from error

    def setup(self, stage: str) -> None:
        """Report how the corpus differs from published statistics."""
        for line in self.deviations():
            note(f"{self.corpus_name}: {line}")

    def deviations(self) -> list[str]:
        """Differences from the closest published statistics; a limited corpus is not compared."""
        if self.is_sample or self.settings.limit_train is not None:
            return []
        compared = compare(of_prepared(self.prepared, "val" in self.corpus.sources), self.published)
        return compared[1] if compared else []

    def label_file(self) -> Path | None:
        """Path to the label-description file: the given one, or `labels.json` etc. in the corpus folder."""
        beside = [] if self.is_sample else [self.place / f"labels{suffix}" for suffix in SUFFIXES]
        return super().label_file() or next((file for file in beside if file.is_file()), None)

    def _fetch_once(self, folder: Path) -> str | None:
        """Download the corpus in one process while others wait; return the reason if that fails, else None."""
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
        """Write the folder from the first source that works, or raise `DownloadError` with all reasons."""
        downloads, failures = folder.with_name(f"{folder.name}.download"), []
        for source in self.sources:
            try:
                with folder_written_whole(folder) as aside:
                    fetch(source, downloads, aside, self.limits)
                shutil.rmtree(downloads, ignore_errors=True)  # including partial downloads from other sources
                return
            except DownloadError as error:
                failures.append(str(error))
            finally:
                with suppress(OSError):  # keep partial downloads, which can be resumed
                    downloads.rmdir()
        reasons = f"could not be downloaded ({'; '.join(failures)})" if failures else NO_SOURCE
        raise DownloadError(reasons)
