"""Datasets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datamodules.base import TextDataModule
from datamodules.prepare.corpus import Corpus, Source
from datamodules.prepare.hub import check_hub, check_hub_name, reason
from datamodules.prepare.opening import RowError
from datamodules.prepare.readers import BadRows, Document, Format, document_of
from zoo.core.console import warn
from zoo.core.errors import UserError

USUAL = {"val": ("validation", "valid", "val", "dev"), "test": ("test",)}  # common names of splits
ROWS = 1_000  # rows read at a time


class HubDataset(TextDataModule):
    """Dataset of the Hugging Face hub, or a folder that `datasets` can load.

    Args:
        dataset: name on the hub, or folder.
        config: name of the dataset's configuration, if it has several.
        revision: branch, tag or commit on the hub.
        train: split of training documents.
        val: split of validation documents; by default one with a common name, or else a part of `train` is split off.
        test: split of test documents; by default `test` if there is one.
        text_column: column of the text.
        label_column: column of the labels: a list of names, numbers or classes, one class, or a string with separators.
        id_column: column of the document ids; rows are numbered if there is none.
        label_sep: separator of labels in a string.
    """

    def __init__(
        self,
        dataset: str,
        config: str | None = None,
        revision: str | None = None,
        train: str = "train",
        val: str | None = None,
        test: str | None = None,
        text_column: str = "text",
        label_column: str = "labels",
        id_column: str = "id",
        label_sep: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dataset, self.config, self.revision = dataset, config, revision
        self.splits = {"train": train, "val": val, "test": test}
        self.format = Format(text_column, label_column, id_column, label_sep, self.limits)

    def find_corpus(self) -> Corpus:
        found = load(self.dataset, self.config, self.revision)
        bad, sources = BadRows(self.max_bad_rows), dict[str, Source]()
        for split, given in self.splits.items():
            names = [given] if given else [name for name in USUAL[split] if name in found][:1]
            for name in names:
                if name not in found:
                    raise UserError(f"{self.dataset} has no split {name!r} (`{split}`); it has {', '.join(found)}")
                sources[split] = HubSource(found[name], Path(self.dataset, name), self.format, bad)
        return Corpus(Path(self.dataset).expanduser().resolve().name, sources)


class HubSource:
    """Documents of one split."""

    def __init__(self, rows: Any, path: Path, format: Format, bad: BadRows) -> None:
        self.path, self.format, self.bad, self.size = path, format, bad, len(rows)
        for option, column in (("text_column", format.text_column), ("label_column", format.label_column)):
            if column not in rows.column_names:
                there = ", ".join(map(repr, rows.column_names))
                raise UserError(f"{path}: no column {column!r} among {there}; set `{option}=...`")
        wanted = (format.id_column, format.text_column, format.label_column)
        self.rows = rows.with_format(None).select_columns([name for name in rows.column_names if name in wanted])
        self.name_of = class_names(self.rows.features[format.label_column])

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        self.bad.start(self.path)
        for start in range(0, self.size, ROWS):
            columns = self.rows[start : start + ROWS]
            for number, values in enumerate(zip(*columns.values(), strict=True), start + 1):
                try:
                    yield document_of(self._with_names(dict(zip(columns, values, strict=True))), self.format)
                except RowError as error:
                    self.bad.add(self.path, number, str(error))
            progress(min(ROWS, self.size - start))
        self.bad.check(self.path)

    def _with_names(self, row: dict[str, Any]) -> dict[str, Any]:
        """Replace class numbers by class names."""
        column = self.format.label_column
        assert column is not None
        if self.name_of is None or row[column] is None:
            return row
        numbers = row[column] if isinstance(row[column], list) else [row[column]]
        try:
            known = [number for number in numbers if number is not None and number >= 0]  # -1 means unknown
            return row | {column: [self.name_of(number) for number in known]}
        except ValueError as error:  # out of range
            raise RowError(str(error)) from None

    def fingerprint(self) -> str:
        return f"{self.rows._fingerprint} {self.format} {self.bad.max_bad_rows}"

    def report(self) -> list[str]:
        return self.bad.report(self.path)


def class_names(feature: Any) -> Callable[[int], str] | None:
    """Return the function that names the classes of a column; None if it does not hold classes."""
    import datasets

    kind = getattr(feature, "feature", feature)
    return kind.int2str if isinstance(kind, datasets.ClassLabel) else None


def load(name: str, config: str | None, revision: str | None) -> Any:
    """Load the splits of a dataset from a folder, from the hub, or, if it cannot be reached, from the local cache."""
    import datasets

    folder = Path(name).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))
        if folder.is_dir():
            return datasets.load_dataset(str(folder.resolve()), config)
        check_hub_name(name)
        return from_hub(name, config, revision)
    except Exception as error:  # broken files may raise anything
        raise UserError(f"no dataset {name!r}: {reason(error)}; check `dataset` and `config`") from error


def from_hub(name: str, config: str | None, revision: str | None) -> Any:
    import datasets

    try:
        check_hub(name, "", "dataset")
    except UserError:
        with offline():
            try:
                found = datasets.load_dataset(name, config, revision=revision)
            except Exception:  # not in the local cache
                found = None
        if found is None:
            raise
        warn(f"{name}: the hub cannot be reached; using the copy in the local cache")
        return found
    return datasets.load_dataset(name, config, revision=revision)


@contextmanager
def offline() -> Iterator[None]:
    """Let `datasets` use its local cache only."""
    from datasets import config

    before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
