"""Corpora with label texts of the Extreme Classification Repository: a JSON object per document and per label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from datamodules.corpora.named import NamedCorpus
from datamodules.prepare.corpus import Corpus, Source
from datamodules.prepare.file_source import FileSource
from datamodules.prepare.label_texts import LabelDescription
from datamodules.prepare.limits import Limits
from datamodules.prepare.opening import NOT_UTF8, RowError, limited_lines, opened
from datamodules.prepare.readers import BadRows, Format, ParsedRow, ParsedRows, parse_json
from datamodules.tools.statistics import Published
from zoo.core.errors import UserError

FILES = {"train": "trn", "test": "tst"}  # our splits, and the names of their files
LABELS = "lbl"
SUFFIXES = (".json.gz", ".json", ".jsonl.gz", ".jsonl")
HOW_TO_GET = (
    "Get the raw text from the Extreme Classification Repository, and put {{trn,tst,lbl}}.json.gz into "
    "$ZOO_DATA/{}, or set `root` to their folder"
)


def text_of(row: dict[str, Any]) -> str:
    """Title and content of a document or label."""
    parts = (row.get("title"), row.get("content"))
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


class TitledJson:
    """Layout with an object per line: `uid`, `title`, `content`, and `target_ind`, the numbers of its labels."""

    def rows(self, stream: IO[bytes], path: Path, format: Format) -> ParsedRows:
        for number, line in enumerate(limited_lines(stream, format.limits), 1):
            yield number, line if isinstance(line, RowError) else self._row(line, format)

    def _row(self, line: bytes, format: Format) -> ParsedRow:
        try:
            row = parse_json(line.decode())
        except UnicodeDecodeError:
            return RowError(NOT_UTF8)
        except (ValueError, RecursionError):
            return RowError("not valid JSON")
        labels = row.get("target_ind") if isinstance(row, dict) else None
        if not isinstance(labels, list) or not all(type(label) is int and label >= 0 for label in labels):
            return RowError("not an object with target_ind, a list of label numbers")
        found = {format.text_column: text_of(row), format.label_column or "": [str(label) for label in labels]}
        return found | ({format.id_column: str(row["uid"])} if "uid" in row else {})

    def fingerprint(self) -> str:
        return "titled"


def file_of(folder: Path, stem: str) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()), None)


def label_rows(path: Path, limits: Limits) -> Iterator[tuple[str, LabelDescription]]:
    """Number and text of each label: label i is on line i, from 0."""
    with opened(path, limits) as stream:
        for number, line in enumerate(limited_lines(stream, limits)):
            try:
                row = None if isinstance(line, RowError) else parse_json(line.decode())
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number + 1}: not a JSON object with a title")
            yield str(number), LabelDescription((text,) if (text := text_of(row)) else (), ())


class TitledCorpus(NamedCorpus):
    """Base class of corpora with `trn.json.gz`, `tst.json.gz` and `lbl.json.gz`; labels are named by their numbers.

    Pairs of `filter_labels_*.txt`, a document and itself as a label, are not removed from rankings.
    """

    def corpus_in(self, folder: Path) -> Corpus | None:
        bad, format = BadRows(self.max_bad_rows), Format(limits=self.limits)
        files = {split: file_of(folder, stem) for split, stem in FILES.items()}
        sources: dict[str, Source] = {s: FileSource(f, bad, format, TitledJson()) for s, f in files.items() if f}
        return Corpus(self.folder, sources) if "train" in sources else super().corpus_in(folder)

    def label_file(self) -> Path | None:
        """Path to the given label-description file, or to `lbl.json.gz` in the corpus folder."""
        beside = None if self.is_sample or self.label_texts else file_of(self.place, LABELS)
        return beside or super().label_file()

    def read_label_file(self, path: Path) -> dict[str, LabelDescription]:
        titled = path.name.startswith(f"{LABELS}.")
        return dict(label_rows(path, self.limits)) if titled else super().read_label_file(path)


class LfAmazonTitles131K(TitledCorpus):
    """LF-AmazonTitles-131K: 294,805 product titles for training, with 131,073 products by their titles as labels.

    Args:
        propensity_a: constant A of the propensity model, as the repository gives it for this corpus.
        propensity_b: constant B of the propensity model, likewise.
    """

    folder = "lf-amazontitles-131k"
    how_to_get = HOW_TO_GET.format(folder)
    published = (Published("Extreme Classification Repository", 294_805, 134_835, 131_073, 2.29, 5.15),)

    def __init__(self, propensity_a: float = 0.6, propensity_b: float = 2.6, **kwargs: Any) -> None:
        super().__init__(propensity_a=propensity_a, propensity_b=propensity_b, **kwargs)


class LfWikipedia500K(TitledCorpus):
    """LF-Wikipedia-500K: 1,813,391 articles for training, with 501,070 categories by their names as labels.

    Args:
        propensity_a: constant A of the propensity model, as the repository gives it for this corpus.
        propensity_b: constant B of the propensity model, likewise.
    """

    folder = "lf-wikipedia-500k"
    how_to_get = HOW_TO_GET.format(folder)
    published = (Published("Extreme Classification Repository", 1_813_391, 783_743, 501_070, 4.77, 24.75),)

    def __init__(self, propensity_a: float = 0.5, propensity_b: float = 0.4, **kwargs: Any) -> None:
        super().__init__(propensity_a=propensity_a, propensity_b=propensity_b, **kwargs)
