"""Corpora that have a name: looked for in a folder, then fetched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from filelock import FileLock

from datamodules.base import CorpusMissingError, TextDataModule
from datamodules.prepare import Corpus
from datamodules.readers import Format
from datamodules.text import file_corpus, files_in


class NamedCorpus(TextDataModule):
    """A corpus found in `root`, in $ZOO_DATA/<folder>, or where an earlier run has fetched it.

    Args:
        root: folder with train, val and test files (jsonl, csv, tsv, parquet; also gzipped).
        download: whether to try the network where no folder has it.
    """

    folder: str  # name of the corpus and of its folder
    how_to_get: str  # for the error message

    def __init__(self, root: str | None = None, download: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root, self.download = root, download

    def fetch(self, folder: Path) -> None:
        """Write `train.jsonl.gz`, ... into a new folder, or raise OSError with the reason."""
        raise OSError("it cannot be downloaded automatically")

    def corpus_in(self, folder: Path) -> Corpus | None:
        """The corpus in a folder; None where it has no training file."""
        files = files_in(folder)
        return file_corpus(self.folder, files, Format(), self.max_bad_rows) if files else None

    def find_corpus(self) -> Corpus:
        fetched = self.cache_dir / "corpora" / self.folder
        places = [Path(self.root).expanduser()] if self.root else []
        if data := os.environ.get("ZOO_DATA"):
            places.append(Path(data).expanduser() / self.folder)
        for place in [*places, fetched]:
            if corpus := self.corpus_in(place):
                return corpus
        reason = "downloading is off"
        if self.download:
            try:
                fetched.parent.mkdir(parents=True, exist_ok=True)
                with FileLock(self.cache_dir / f"{self.folder}.lock"):  # one process fetches, the others wait
                    if not fetched.exists():
                        self.fetch(fetched)
                if corpus := self.corpus_in(fetched):
                    return corpus
                reason = f"there are no training documents in {fetched}"
            except OSError as error:
                reason = str(error)
        looked = ", ".join(str(place) for place in places) or "no folder (neither --data.root nor $ZOO_DATA is set)"
        raise CorpusMissingError(f"no corpus {self.folder}: looked in {looked}; {reason}. {self.how_to_get}")
