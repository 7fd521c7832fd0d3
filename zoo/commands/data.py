"""`zoo data`: list, prepare, convert and check corpora."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from rich.table import Table

from datamodules.corpora.named import NamedCorpus
from datamodules.prepare.readers import Format
from datamodules.tools.check import Check
from datamodules.tools.convert import Converter, files_for
from datamodules.tools.statistics import Statistics, count_corpus
from datamodules.tools.statistics import compare as compare_published
from zoo.commands.find_corpus import find_corpus, find_named, location_of, named_corpora, published
from zoo.commands.output import opened_output, plain_console
from zoo.core.console import note
from zoo.core.errors import UserError, check_low, check_range, printable

MIN_NEAR = 0.5  # below this similarity most documents resemble most others


def list_corpora() -> None:
    """List the named corpora, and where they are found.

    The sizes are those published in papers.

    Examples:
        zoo data list
    """
    table = Table(*("name", "published in", "train", "test", "labels"), box=None, padding=(0, 2, 0, 0))
    table.add_column("found in", overflow="fold")
    for name, kind in named_corpora().items():
        rows = [(row.where, *(f"{n:,}" for n in (row.train, row.test, row.labels))) for row in published(kind)]
        first, *others = rows or [("", "", "", "")]
        table.add_row(name, *first, location_of(kind))
        for row in others:
            table.add_row("", *row, "")
    plain_console().print(table)


def prepare(
    name: str,
    *,
    root: str | None = None,
    tokenizer: str | None = None,
    max_length: int = 500,
    max_words: int = 500_000,
) -> None:
    """Download a corpus and tokenize it into the cache.

    Its size is compared with the published one.

    Args:
        name: a corpus from `zoo data list`.
        root: folder with train, val and test files; nothing is downloaded if it is given.
        tokenizer: `word`, or the name or folder of a Hugging Face tokenizer (default: word).
        max_length: maximum number of tokens of a document; the rest is cut off.
        max_words: maximum size of the word vocabulary.

    Examples:
        zoo data prepare reuters
        zoo data prepare eurlex57k --tokenizer bert-base-uncased
    """
    kind = find_named(name)
    settings: dict[str, Any] = {"tokenizer": tokenizer, "max_length": max_length, "max_words": max_words}
    if issubclass(kind, NamedCorpus):
        settings["root"] = root
    elif root is not None:
        raise UserError(f"`root={root}`: {kind.__name__} is generated and has no folder")
    data = kind(**settings)
    prepared = data.prepared
    statistics = count_corpus(data.corpus)
    console = plain_console()
    console.print(statistics_table(data.corpus_name, statistics))
    console.print(f"\nprepared in {prepared.folder}")
    if (compared := compare_published(statistics, published(kind))) is not None:
        best, lines = compared
        for line in lines or [f"as published: {best.where}"]:
            console.print(line)


def stats(
    path: str,
    *,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    json: bool = False,
) -> None:
    """Count the documents, labels and words of a corpus.

    Means are over training documents.

    Args:
        path: folder with train, val and test files, a single file (counted as train), or the name of a corpus.
        text_column: column of the text.
        label_column: column of the labels.
        id_column: column of the document id.
        label_sep: separator of labels within a string (default: a comma).
        json: print JSON instead of a table.

    Examples:
        zoo data stats my_corpus/
        zoo data stats train.jsonl --json
    """
    corpus = find_corpus(path, Format(text_column, label_column, id_column, label_sep))
    statistics = count_corpus(corpus)
    for source in corpus.sources.values():
        for line in source.report():
            note(line)
    if json:
        print_json({"corpus": corpus.name} | asdict(statistics))
    else:
        plain_console().print(statistics_table(corpus.name, statistics))


def convert(
    source: str,
    target: str,
    *,
    format: str | None = None,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    target_label_sep: str = ",",
    features: bool = False,
    max_bad_rows: int = 0,
    overwrite: bool = False,
) -> None:
    """Convert a file, or all splits of a corpus, to another format.

    The suffix of a file tells its format: .jsonl, .parquet, .txt (id<TAB>labels<TAB>text) or .xmc (sparse features);
    all but .parquet can be compressed, with .gz or .bz2.

    Args:
        source: file, folder with train, val and test files, or name of a corpus.
        target: file to write; a folder if the source is a folder or a named corpus.
        format: suffix of the files in a target folder.
        text_column: column of the text in the source.
        label_column: column of the labels in the source.
        id_column: column of the document id in the source.
        label_sep: separator of labels within a string of the source (default: a comma).
        target_label_sep: separator of labels in a .txt target.
        features: read texts as sparse features, `name:value name:value`, for an .xmc target.
        max_bad_rows: maximum number of unreadable rows to skip; skipped rows are reported.
        overwrite: replace existing files.

    Examples:
        zoo data convert train.csv train.jsonl
        zoo data convert my_corpus/ converted/ --format .parquet
    """
    check_low(0, max_bad_rows=max_bad_rows)
    corpus = find_corpus(source, Format(text_column, label_column, id_column, label_sep), max_bad_rows)
    is_file, place = Path(source).expanduser().is_file(), Path(target).expanduser()
    if is_file and format is not None:
        raise UserError(f"`format={format}` is for folders: {source} is a file, and the suffix of the target counts")
    if not is_file and format is None:
        raise UserError("`format` is missing: it is the suffix of the files in the target folder, such as .parquet")
    targets = {"train": place} if format is None else files_for(corpus, place, format)
    converter = Converter(target_label_sep, features, overwrite)
    for line in converter.convert(corpus, targets):
        note(line)


def check(
    path: str,
    *,
    near: float = 0.9,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    json: bool = False,
) -> None:
    """Check a corpus for duplicates, leaks and empty documents.

    The exit code is 1 if there are any.

    Args:
        path: folder with train, val and test files, a single file (counted as train), or the name of a corpus.
        near: Jaccard similarity of word trigrams from which two documents count as near duplicates; 0 skips the search.
        text_column: column of the text.
        label_column: column of the labels.
        id_column: column of the document id.
        label_sep: separator of labels within a string (default: a comma).
        json: print JSON instead of text.

    Examples:
        zoo data check my_corpus/
        zoo data check my_corpus/ --near 0.8 --json
    """
    check_range(0, 1, near=near)
    if 0 < near < MIN_NEAR:
        raise UserError(f"`near={near}` is neither 0 nor between {MIN_NEAR} and 1")
    corpus = find_corpus(path, Format(text_column, label_column, id_column, label_sep))
    problems = Check(corpus, near).run()
    if json:
        print_json({"corpus": corpus.name, "problems": [asdict(problem) for problem in problems]})
    else:
        console = plain_console()
        count = f"{len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}"
        console.print(f"{printable(corpus.name)}: {count}")
        for problem in problems:
            console.print(f"  {printable(str(problem))}")
    if problems:
        raise SystemExit(1)


def statistics_table(title: str, statistics: Statistics) -> Table:
    table = Table(
        title=printable(title), title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2)
    )
    table.add_column()
    table.add_column(justify="right")
    for row in statistics.lines():
        table.add_row(*row)
    return table


def print_json(content: dict[str, Any]) -> None:
    with opened_output("-") as sink:
        sink.write(dumps(content, ensure_ascii=False) + "\n")
