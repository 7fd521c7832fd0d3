"""Any corpus in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from datamodules.base import TextDataModule, find_file
from datamodules.errors import UserError
from datamodules.prepare import Corpus, Source
from datamodules.readers import PACKED, BadRows, Document, Format, fingerprint, read_documents

SUFFIXES = [
    kind + packed
    for kind in (".jsonl", ".json", ".ndjson", ".parquet", ".csv", ".tsv", ".txt")
    for packed in ("", *PACKED)
]


class FileSource:
    """Documents of one file."""

    def __init__(self, path: Path, format: Format, bad: BadRows) -> None:
        self.path, self.format, self.bad = path, format, bad
        self.size = path.stat().st_size

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        return read_documents(self.path, self.format, self.bad, progress)

    def fingerprint(self) -> str:
        kind = "".join(self.path.suffixes[-2:])
        return f"{fingerprint(self.path)} {kind} {self.format} {self.bad.max_bad_rows}"

    def report(self) -> list[str]:
        return self.bad.report(self.path)


class TextFiles(TextDataModule):
    """Your own corpus: jsonl, csv, tsv, parquet, or lines of id, labels and text; each also as .gz or .bz2.

    Args:
        train: training documents.
        val: validation documents; by default part of the training documents is split off.
        test: test documents.
        text_column: where the text is.
        label_column: where the labels are: a list, or one string with separators.
        id_column: where the ids are; rows are numbered where there are none.
        label_sep: what separates labels in one string; a comma where nothing is said.
        name: what to call the corpus; by default its folder's name.
    """

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        text_column: str = "text",
        label_column: str = "labels",
        id_column: str = "id",
        label_sep: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.files = {"train": train, "val": val, "test": test}
        self.format = Format(text_column, label_column, id_column, label_sep)
        self.given_name = name

    def find_corpus(self) -> Corpus:
        found = {}
        for split, given in self.files.items():
            if given is not None:
                path = find_file(given)
                if path is None:
                    raise UserError(f"no such file: {given} (--data.{split}), nor there under $ZOO_DATA")
                if ".xmc" in path.suffixes:
                    raise UserError(f"{path} has features and no texts: read it with --data SparseFiles")
                found[split] = path
        name = self.given_name or found["train"].resolve().parent.name or "corpus"
        return file_corpus(name, found, self.format, self.max_bad_rows)


def file_corpus(name: str, files: dict[str, Path], format: Format, max_bad_rows: int) -> Corpus:
    bad = BadRows(max_bad_rows)
    sources: dict[str, Source] = {split: FileSource(path, format, bad) for split, path in files.items()}
    return Corpus(name, sources)


def files_in(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> dict[str, Path]:
    """`train`, `val` and `test` files of a corpus folder, in whatever format; empty if there is no `train`."""
    found: dict[str, Path] = {}
    for split, names in {"train": ["train"], "val": ["val", "dev", "valid"], "test": ["test"]}.items():
        places = [folder / (name + suffix) for name in names for suffix in suffixes]
        present = [place for place in places if place.is_file()]
        if len(present) > 1:
            raise UserError(f"{folder} has both {present[0].name} and {present[1].name}: keep one of them")
        if present:
            found[split] = present[0]
    return found if "train" in found else {}
