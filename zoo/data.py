"""`python -m zoo data`: corpora named, prepared, counted, converted and checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from datamodules.check import Check
from datamodules.convert import Converter, files_for
from datamodules.errors import UserError
from datamodules.folder import NamedCorpus
from datamodules.progress import note
from datamodules.readers import Format
from datamodules.statistics import Statistics, compare, count_corpus
from zoo.catalog import plain_table
from zoo.corpora import find_corpus, find_named, named_corpora, option_names, place_of, published
from zoo.predict import opened_output
from zoo.verbs import first_sentence, run_verb

WIDE = 200  # columns where nobody sees how many there are, as in a file
LEAST_NEAR = 0.5  # below it most documents are like most others


def list_corpora() -> None:
    """List the corpora that have a name, what papers say of them, and where they are."""
    table = Table(*("name", "published in", "train", "test", "labels"), box=None, padding=(0, 2, 0, 0))
    table.add_column("found in", overflow="fold")
    for name, kind in named_corpora().items():
        rows = [(row.where, *(f"{n:,}" for n in (row.train, row.test, row.labels))) for row in published(kind)]
        first, *others = rows or [("", "", "", "")]
        table.add_row(name, *first, place_of(kind))
        for row in others:
            table.add_row("", *row, "")
    plain_console().print(table)


def prepare(
    name: str,
    root: str | None = None,
    tokenizer: str | None = None,
    max_length: int = 500,
    max_words: int = 500_000,
) -> None:
    """Fetch a corpus if it is not here, tokenise it into the cache, and hold it against what was published.

    Args:
        name: one that `data list` shows.
        root: folder with train, val and test files.
        tokenizer: `word` (the default) or a Hugging Face tokenizer by name or folder.
        max_length: tokens kept of a document, from its beginning.
        max_words: size of the word vocabulary at most.
    """
    kind = find_named(name)
    settings: dict[str, Any] = {"tokenizer": tokenizer, "max_length": max_length, "max_words": max_words}
    if issubclass(kind, NamedCorpus):
        settings["root"] = root
    elif root is not None:
        raise UserError(f"{kind.__name__} is generated: it has no --root")
    data = option_names(lambda: kind(**settings))
    prepared = option_names(lambda: data.prepared)
    statistics = count_corpus(data.corpus)
    console = plain_console()
    console.print(statistics_table(data.corpus_name, statistics))
    console.print(f"\nprepared in {prepared.folder}")
    if (compared := compare(statistics, published(kind))) is not None:
        best, lines = compared
        for line in lines or [f"as published: {best.where}"]:
            console.print(line)


def stats(
    path: str,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    json: bool = False,
) -> None:
    """Count documents, labels and words; means are over training documents.

    Args:
        path: folder with train, val and test files, one file, which counts as train, or the name of a corpus.
        text_column: where the text is.
        label_column: where the labels are.
        id_column: where the ids are.
        label_sep: what separates labels in one string; a comma where nothing is said.
        json: print JSON instead of a table.
    """
    corpus = find_corpus(path, Format(text_column, label_column, id_column, label_sep, options="--"))
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
    """Convert a file, or all splits of a folder, to jsonl, parquet, id<TAB>labels<TAB>text or sparse features.

    Args:
        source: file in any format that a corpus may have, a folder with train, val and test files, or the name of a
            corpus.
        target: file whose ending says the format: .jsonl, .txt or .xmc, also with .gz or .bz2, or .parquet; a folder
            where the source has several files.
        format: of the files in a target folder, by such an ending.
        text_column: where the source has the text.
        label_column: where the source has the labels.
        id_column: where the source has the ids.
        label_sep: what separates labels in one string of the source; a comma where nothing is said.
        target_label_sep: what separates labels in a .txt target.
        features: texts of the source are `name:value name:value`, and become the features of an .xmc target.
        max_bad_rows: leave out so many unreadable rows; they are reported.
        overwrite: replace files that are there.
    """
    layout = Format(text_column, label_column, id_column, label_sep, options="--")
    corpus = find_corpus(source, layout, max_bad_rows)
    is_file, place = Path(source).expanduser().is_file(), Path(target).expanduser()
    if is_file == (format is not None):
        raise UserError("--format says what the files of a folder become: give it there, and only there")
    targets = {"train": place} if format is None else files_for(corpus, place, format)
    converter = Converter(target_label_sep, features, overwrite)
    for line in option_names(lambda: converter.convert(corpus, targets)):
        note(line)


def check(
    path: str,
    near: float = 0.9,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    json: bool = False,
) -> None:
    """List what is wrong with a corpus; the exit code is 1 if anything is.

    Args:
        path: folder with train, val and test files, one file, which counts as train, or the name of a corpus.
        near: share of their runs of three words from which on two documents are nearly the same; 0 looks for none.
        text_column: where the text is.
        label_column: where the labels are.
        id_column: where the ids are.
        label_sep: what separates labels in one string; a comma where nothing is said.
        json: print JSON instead of lines.
    """
    if near and not LEAST_NEAR <= near <= 1:
        raise UserError(f"--near={near} is not between {LEAST_NEAR} and 1, nor 0, which looks for none")
    corpus = find_corpus(path, Format(text_column, label_column, id_column, label_sep, options="--"))
    problems = Check(corpus, near).run()
    if json:
        print_json({"corpus": corpus.name, "problems": [asdict(problem) for problem in problems]})
    else:
        console = plain_console()
        console.print(f"{corpus.name}: {'what is wrong' if problems else 'nothing is wrong'}")
        for problem in problems:
            console.print(f"  {problem}")
    if problems:
        raise SystemExit(1)


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_corpora,
    "prepare": prepare,
    "stats": stats,
    "convert": convert,
    "check": check,
}


def run_data(argv: list[str]) -> None:
    """Dispatch `python -m zoo data COMMAND`."""
    command = argv[0] if argv else "--help"
    if command in ("--help", "-h"):
        plain_console().print(usage())
    elif command in COMMANDS:
        run_verb(COMMANDS[command], f"data {command}", argv[1:], positional=True)
    else:
        raise UserError(f"there is no `data {command}`: the commands are {', '.join(COMMANDS)}")


def usage() -> str:
    commands = [f"  {name:9}{first_sentence(command.__doc__)}" for name, command in COMMANDS.items()]
    hint = "`python -m zoo data COMMAND --help` shows what it takes"
    return "\n".join(["usage: python -m zoo data COMMAND ...", *commands, hint])


def statistics_table(name: str, statistics: Statistics) -> Table:
    table = plain_table(name)
    table.add_column()
    table.add_column(justify="right")
    for row in statistics.lines():
        table.add_row(*row)
    return table


def print_json(content: dict[str, Any]) -> None:
    with opened_output("-") as sink:
        sink.write(dumps(content, ensure_ascii=False) + "\n")


def plain_console() -> Console:
    """Names go out as they are: what looks like markup or an emoji is none."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
