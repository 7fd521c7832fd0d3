"""Datasets of the Hugging Face hub as corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datamodules.base import TextDataModule
from datamodules.errors import UserError
from datamodules.hub import ask_hub, reason
from datamodules.prepare import Corpus, Source
from datamodules.progress import note
from datamodules.readers import BadRows, Document, Format, RowError, document_of

USUAL = {"val": ("validation", "valid", "val", "dev"), "test": ("test",)}  # names of splits
ROWS = 1_000  # read at a time


class HubDataset(TextDataModule):
    """A dataset of the Hugging Face hub by its name, or a folder that `datasets` can load.

    It is read from where `datasets` keeps it, never as a whole.

    Args:
        dataset: name on the hub, or folder.
        config: which of its configurations, where it has several.
        revision: branch, tag or commit on the hub.
        train: split with training documents.
        val: split with validation documents; by default the usual names are tried, then part of `train` is split off.
        test: split with test documents; by default `test` where there is one.
        text_column: where the text is.
        label_column: where the labels are: a list of names, numbers or classes, a class, or a string with separators.
        id_column: where the ids are; rows are numbered where there are none.
        label_sep: what separates labels in one string.
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
        self.format = Format(text_column, label_column, id_column, label_sep)

    def find_corpus(self) -> Corpus:
        found = load(self.dataset, self.config, self.revision)
        bad, sources = BadRows(self.max_bad_rows), dict[str, Source]()
        for split, given in self.splits.items():
            names = [given] if given else [name for name in USUAL[split] if name in found][:1]
            for name in names:
                if name not in found:
                    raise UserError(f"{self.dataset} has no split {name!r} (--data.{split}), it has {', '.join(found)}")
                sources[split] = HubSource(found[name], Path(self.dataset, name), self.format, bad)
        return Corpus(Path(self.dataset).expanduser().resolve().name, sources)


class HubSource:
    """Documents of one split."""

    def __init__(self, rows: Any, path: Path, format: Format, bad: BadRows) -> None:
        self.path, self.format, self.bad, self.size = path, format, bad, len(rows)
        for option, column in (("text_column", format.text_column), ("label_column", format.label_column)):
            if column not in rows.column_names:
                there = ", ".join(map(repr, rows.column_names))
                raise UserError(f"{path}: no column {column!r} among {there}; set --data.{option}=...")
        wanted = (format.id_column, format.text_column, format.label_column)
        self.rows = rows.with_format(None).select_columns([name for name in rows.column_names if name in wanted])
        self.name_of = class_names(self.rows.features[format.label_column])

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        self.bad.start(self.path)
        for start in range(0, self.size, ROWS):
            columns = self.rows[start : start + ROWS]
            for number, values in enumerate(zip(*columns.values(), strict=True), start + 1):
                try:
                    yield document_of(self._named(dict(zip(columns, values, strict=True))), self.format)
                except RowError as error:
                    self.bad.add(self.path, number, str(error))
            progress(min(ROWS, self.size - start))
        self.bad.check(self.path)

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """With the names of classes in the place of their numbers."""
        column = self.format.label_column
        assert column is not None
        if self.name_of is None or row[column] is None:
            return row
        numbers = row[column] if isinstance(row[column], list) else [row[column]]
        try:
            known = [number for number in numbers if number is not None and number >= 0]  # -1: not known
            return row | {column: [self.name_of(number) for number in known]}
        except ValueError as error:  # more than there are
            raise RowError(str(error)) from None

    def fingerprint(self) -> str:
        return f"{self.rows._fingerprint} {self.format} {self.bad.max_bad_rows}"

    def report(self) -> list[str]:
        return self.bad.report(self.path)


def class_names(feature: Any) -> Callable[[int], str] | None:
    """What names the numbers of classes, in a list or alone; None for other columns."""
    import datasets

    kind = getattr(feature, "feature", feature)
    return kind.int2str if isinstance(kind, datasets.ClassLabel) else None


def load(name: str, config: str | None, revision: str | None) -> Any:
    """Splits by name: of a folder, of the hub, or, where that cannot be reached, what was got before."""
    import datasets

    folder = Path(name).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))
        if folder.is_dir():
            return datasets.load_dataset(str(folder.resolve()), config)
        if name.startswith(("/", ".", "~")) or name.count("/") > 1:
            raise UserError("there is no such folder")
        return from_hub(name, config, revision)
    except Exception as error:  # files of another kind may raise anything
        raise UserError(f"no dataset {name!r}: {reason(error)}; see --data.dataset and --data.config") from error


def from_hub(name: str, config: str | None, revision: str | None) -> Any:
    import datasets

    try:
        ask_hub(name, "", "dataset")
    except UserError:
        with offline():
            try:
                found = datasets.load_dataset(name, config, revision=revision)
            except Exception:  # nor was it got before
                found = None
        if found is None:
            raise
        note(f"{name}: the hub cannot be asked; this is what was got before")
        return found
    return datasets.load_dataset(name, config, revision=revision)


@contextmanager
def offline() -> Iterator[None]:
    """Nothing but what lies on this machine, and no waiting."""
    from datasets import config

    before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
