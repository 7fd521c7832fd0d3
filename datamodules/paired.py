"""Texts in one file and labels in another, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO

from datamodules.prepare import Corpus, Source
from datamodules.readers import BadRows, Document, Format, RowError, Rows, fingerprint, read_documents, user_errors

SPLITS = ("train", "val", "test")


class PairedSource:
    """Documents of `text_<split>`, whose labels are in `label_<split>` with spaces between them."""

    def __init__(self, folder: Path, split: str, bad: BadRows) -> None:
        self.path, self.label_path, self.bad = folder / f"text_{split}", folder / f"label_{split}", bad
        self.size = self.path.stat().st_size

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        return read_documents(self.path, Format(), self.bad, progress, self._rows)

    def _rows(self, stream: IO[bytes], path: Path, format: Format) -> Rows:
        with user_errors(self.label_path), self.label_path.open("rb") as labels:
            for number, (text, names) in enumerate(zip_longest(stream, labels), 1):
                if text is None or names is None:
                    yield number, RowError(f"{path.name} and {self.label_path.name} have not as many lines")
                    return
                fields = [line.decode(errors="replace").strip() for line in (text, names)]
                yield number, {format.text_column: fields[0], format.label_column or "": fields[1].split()}

    def fingerprint(self) -> str:
        return f"{fingerprint(self.path)} {fingerprint(self.label_path)} paired {self.bad.max_bad_rows}"

    def report(self) -> list[str]:
        return self.bad.report(self.path)


def paired_corpus(name: str, folder: Path, max_bad_rows: int) -> Corpus | None:
    """The corpus in a folder of `text_train`, `label_train` and so on; None where these two are not there."""
    bad = BadRows(max_bad_rows)
    there = [split for split in SPLITS if all((folder / f"{part}_{split}").is_file() for part in ("text", "label"))]
    sources: dict[str, Source] = {split: PairedSource(folder, split, bad) for split in there}
    return Corpus(name, sources) if "train" in sources else None
