"""Corpora in text files of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datamodules.base import TextDataModule
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.file_source import file_corpus
from datamodules.prepare.find_files import find_files
from datamodules.prepare.opening import DECOMPRESSORS
from datamodules.prepare.readers import Format
from zoo.core.errors import UserError

SUFFIXES = [
    kind + packed
    for kind in (".jsonl", ".json", ".ndjson", ".parquet", ".csv", ".tsv", ".txt")
    for packed in ("", *DECOMPRESSORS)
]


class TextFiles(TextDataModule):
    """Your own corpus of texts: jsonl, csv, tsv, parquet, or txt; each may be compressed as .gz or .bz2.

    A line of a .txt file is id<TAB>labels<TAB>text.

    Args:
        train: file of training documents.
        val: file of validation documents; by default a part of the training documents is split off.
        test: file of test documents.
        text_column: column of the text.
        label_column: column of the labels: a list, or a string with separators.
        id_column: column of the document ids; rows are numbered if there is none.
        label_sep: separator of labels in a string; by default a comma in csv, tsv and txt files.
        name: name of the corpus; by default that of its folder.
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
        self.format = Format(text_column, label_column, id_column, label_sep, self.limits)
        self.given_name = name

    def find_corpus(self) -> Corpus:
        found = find_files(self.files)
        for path in found.values():
            if ".xmc" in path.suffixes:
                raise UserError(f"{path} contains features, not texts: read it with `data=SparseFiles`")
        name = self.given_name or found["train"].resolve().parent.name or "corpus"
        return file_corpus(name, found, self.format, self.max_bad_rows)


def files_in(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> dict[str, Path]:
    """Find the `train`, `val` and `test` files of a folder in any format; empty if there is no `train`."""
    found: dict[str, Path] = {}
    for split, names in {"train": ["train"], "val": ["val", "dev", "valid"], "test": ["test"]}.items():
        places = [folder / (name + suffix) for name in names for suffix in suffixes]
        present = [place for place in places if place.is_file()]
        if len(present) > 1:
            raise UserError(f"{folder} has both {present[0].name} and {present[1].name}: keep one of them")
        if present:
            found[split] = present[0]
    return found if "train" in found else {}
