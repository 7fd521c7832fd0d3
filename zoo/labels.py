"""`python -m zoo add-labels`: a few documents of new labels in, a checkpoint that knows them out."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from datamodules.errors import UserError
from datamodules.progress import note
from datamodules.readers import Format, read_documents
from zoo.checkpoint import check_target
from zoo.predict import FirstBadRow
from zoo.tagger import load

Examples = list[tuple[str, list[str]]]  # texts with their labels


def add_labels(
    ckpt: str,
    input: str,
    out: str,
    update: bool = False,
    ignore_known: bool = False,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    device: str | None = None,
) -> None:
    """Teach a trained model new labels, from one or more documents of each, without training.

    Args:
        ckpt: checkpoint of zoo fit, or of this command.
        input: jsonl, csv, tsv or parquet file of documents with their labels, or lines of id, labels and text; also
            gzipped. Labels that the model does not know are new.
        out: checkpoint to write; may be the same as `ckpt`.
        update: labels that the model knows learn from their documents too; without it they are refused.
        ignore_known: leave out labels that the model knows.
        text_column: where a row has its text.
        label_column: where a row has its labels: a list, or one string with separators.
        id_column: where a row has its id; messages name it.
        label_sep: what separates labels in one string; a comma in tables where nothing is said.
        device: `cpu`, `cuda`, ...; a GPU if there is one by default.
    """
    start = time.perf_counter()
    if update and ignore_known:
        raise UserError("--update and --ignore_known contradict each other: give one of them")
    check_target(out)
    examples = read_examples(Path(input), Format(text_column, label_column, id_column, label_sep, options="--"))
    tagger = load(ckpt, device)
    known = set(tagger.names)
    if ignore_known:
        examples = without(examples, known, input)
    tagger.add_labels(examples, update).save(out)
    added, updated = len(tagger.names) - len(known), len({name for _, names in examples for name in names} & known)
    seconds = time.perf_counter() - start
    lines = {
        "labels": f"{added:,} added, {updated:,} updated, {len(tagger.names):,} in all",
        "documents": f"{len(examples):,}",
        "seconds": f"{seconds:.1f}",
        "checkpoint": out,
    }
    for name, value in lines.items():
        Console(highlight=False, markup=False, soft_wrap=True).print(f"{name}: {value}")


class FirstBadExample(FirstBadRow):
    """Stops at the first row that cannot be read."""

    columns = "--text_column and --label_column"


def read_examples(path: Path, format: Format) -> Examples:
    """Documents that have labels; the number of others is told."""
    examples: Examples = []
    bare = 0
    for number, document in enumerate(read_documents(path, format, FirstBadExample()), 1):
        if not document.labels:
            bare += 1
        elif not document.text.strip():
            name = f" (id {document.id!r})" if document.id else ""
            raise UserError(f"{path}: document {number}{name} has no text: take it out")
        else:
            examples.append((document.text, document.labels))
    if not examples:
        what = f"none of the {bare:,} documents has a label" if bare else "there are no documents"
        raise UserError(f"{path}: {what}; each new label needs at least one")
    if bare:
        note(f"{path}: left out what has no label, {bare:,} of {bare + len(examples):,} documents")
    return examples


def without(examples: Examples, known: set[str], source: str) -> Examples:
    """Documents with the labels that are not known; those that have none are left out."""
    kept = [(text, [name for name in names if name not in known]) for text, names in examples]
    kept = [(text, names) for text, names in kept if names]
    if not kept:
        raise UserError(f"{source}: the model knows all labels already; --update lets them learn from the documents")
    if len(kept) < len(examples):
        note(f"{source}: left out what has no new label, {len(examples) - len(kept):,} of {len(examples):,} documents")
    return kept
