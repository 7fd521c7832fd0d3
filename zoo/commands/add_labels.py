"""`zoo add-labels`: add labels to a trained model, from a few documents or the text of each."""

from __future__ import annotations

import time
from pathlib import Path

from datamodules.prepare.label_texts import label_texts, read_labels
from datamodules.prepare.readers import REPLACEMENT, BadRows, Format, read_documents
from zoo.commands.output import check_not_overwritten, print_summary
from zoo.core.console import note
from zoo.core.errors import UserError
from zoo.training.checkpoint import check_target
from zoo.training.tagger import load

Examples = list[tuple[str, list[str]]]  # texts with their labels


def add_labels(
    *,
    ckpt: str,
    out: str,
    input: str | None = None,
    texts: str | None = None,
    update: bool = False,
    ignore_known: bool = False,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Add labels to a trained model from a few documents of each, or from their texts.

    The model is not trained again. Labels that it does not know are added; known labels are an error unless --update
    or --ignore_known is given. Texts need a model with a DualEncoder; labels with texts need no documents.

    Args:
        ckpt: checkpoint of `zoo fit` or `zoo add-labels`.
        input: jsonl, csv, tsv or parquet file of labelled documents, or a text file of id<TAB>labels<TAB>text; can be
            compressed.
        texts: label-description file, json, jsonl, csv or tsv, as `data.label_texts` takes it; labels that the model
            knows are left out.
        out: checkpoint to write; can be the same as --ckpt.
        update: update known labels with their documents.
        ignore_known: ignore known labels.
        text_column: column of the text.
        label_column: column of the labels: a list, or a string with separators.
        id_column: column of the document id, which error messages mention.
        label_sep: separator of labels within a string (default: a comma).
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo add-labels --ckpt best.ckpt --input new_labels.jsonl --out extended.ckpt
        zoo add-labels --ckpt dual.ckpt --texts labels.csv --out extended.ckpt
    """
    start = time.perf_counter()
    if update and ignore_known:
        raise UserError("`update` and `ignore_known` exclude each other")
    if not (input or texts):
        raise UserError("no labels: give documents (`input`), texts of labels (`texts`), or both")
    for option, file in {"input": input, "texts": texts}.items():
        if file:
            check_not_overwritten(out, **{option: file})
    check_target(out)
    format = Format(text_column, label_column, id_column, label_sep)
    examples = read_examples(Path(input), format) if input else []
    described = {name: text for name, text in label_texts(read_labels(Path(texts))).items() if text} if texts else {}
    tagger = load(ckpt, device, trust or ())
    known = set(tagger.names)
    if input and ignore_known:
        examples = without(examples, known, input)
    new = {name: text for name, text in described.items() if name not in known}
    if described and not new and not examples:
        raise UserError(f"{texts}: the model knows all of the {len(described):,} labels")
    tagger.add_labels(examples, update, new).save(out)
    added, updated = len(tagger.names) - len(known), len({name for _, names in examples for name in names} & known)
    print_summary(
        labels=f"{added:,} added, {updated:,} updated, {len(tagger.names):,} in total",
        documents=f"{len(examples):,}",
        seconds=f"{time.perf_counter() - start:.1f}",
        checkpoint=out,
    )


class FirstBadRow(BadRows):
    """Raises an error at the first unreadable row, so that no label is learned from some of its documents."""

    def add(self, path: Path, line: int, reason: str) -> None:
        raise UserError(f"{path}, line {line}: {reason}; set the columns with `text_column` and `label_column`")


def read_examples(path: Path, format: Format) -> Examples:
    """Read the documents that have labels; a note tells how many do not."""
    examples: Examples = []
    unlabelled = 0
    for number, document in enumerate(read_documents(path, format, FirstBadRow()), 1):
        if not document.labels:
            unlabelled += 1
        elif not document.text.strip():
            name = f" (id {document.id!r})" if document.id else ""
            raise UserError(f"{path}: document {number}{name} has no text: remove it")
        elif damaged := [name for name in document.labels if REPLACEMENT in name]:
            raise UserError(f"{path}: document {number}: label {damaged[0]!r} has characters that cannot be read")
        else:
            examples.append((document.text, document.labels))
    if not examples:
        what = f"none of the {unlabelled:,} documents has a label" if unlabelled else "no documents"
        raise UserError(f"{path}: {what}; each new label needs at least one document")
    if unlabelled:
        note(f"{path}: skipped {unlabelled:,} of {unlabelled + len(examples):,} documents, which have no labels")
    return examples


def without(examples: Examples, known: set[str], source: str) -> Examples:
    """Remove known labels, and the documents that have no others."""
    kept = [(text, [name for name in names if name not in known]) for text, names in examples]
    kept = [(text, names) for text, names in kept if names]
    if not kept:
        raise UserError(f"{source}: the model knows all labels already; `update` updates them with the documents")
    if len(kept) < len(examples):
        note(
            f"{source}: skipped {len(examples) - len(kept):,} of {len(examples):,} documents, which have no new labels"
        )
    return kept
