"""`zoo export`: a trained model as a folder that other programs can use without the zoo."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import yaml

from datamodules.prepare.readers import Document, Format, read_documents
from zoo.commands.add_labels import FirstBadRow
from zoo.commands.output import print_summary
from zoo.core.errors import MANY, WIDEST, UserError, check_range, first_line
from zoo.core.files import folder_written_whole
from zoo.deploy.folder import MODELS, Documents, Export
from zoo.training.checkpoint import build_data
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.tagger import Tagger, load


def export(
    *,
    ckpt: str,
    out: str,
    format: Literal["onnx", "torch"] = "onnx",
    int8: bool = False,
    k: int = 100,
    input: str | None = None,
    documents: int = 1000,
    batch_size: int = 32,
    text_column: str = "text",
    label_column: str = "labels",
    trust: list[str] | None = None,
) -> None:
    """Export a trained model for programs without the zoo.

    The folder has the graph from token ids to the best labels, the tokenizer, the labels with their thresholds, a
    short script that needs only the runtime, and a report. The exported model must give the top 5 and the scores of the
    checkpoint, otherwise nothing is written.

    Args:
        ckpt: checkpoint of `zoo fit`.
        out: folder to write, which must not exist yet.
        format: `onnx`, for onnxruntime, or `torch`, a program of `torch.export`.
        int8: also write an ONNX graph with weights of 8 bits; its P@1 may be half a point lower.
        k: number of labels that the graph returns.
        input: documents to compare on: jsonl, csv, tsv or parquet file with labels (default: test documents of the
            checkpoint's corpus).
        documents: number of documents to compare on.
        batch_size: documents per batch of the comparison.
        text_column: column of the text.
        label_column: column of the labels.
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo export --ckpt best.ckpt --out model
        zoo export --ckpt best.ckpt --out model --int8
        zoo export --ckpt best.ckpt --out model --format torch --input docs.jsonl
    """
    start = time.perf_counter()
    check_range(1, WIDEST, k=k)
    check_range(1, MANY, documents=documents, batch_size=batch_size)
    if int8 and format != "onnx":
        raise UserError(f"`int8=True` needs `format=onnx`, not `format={format}`")
    folder = Path(out).expanduser().resolve()
    if os.path.lexists(folder) or not folder.parent.is_dir():
        reason = "it exists already" if os.path.lexists(folder) else "its parent is not a folder"
        raise UserError(f"cannot write `out={out}`: {reason}")
    tagger = load(ckpt, "cpu", trust or ())
    if isinstance(tagger, EnsembleTagger):
        raise UserError(f"{ckpt} holds several models, which are no single graph: export one of them")
    source, rows = given_documents(input, text_column, label_column) if input else test_documents(tagger, ckpt, trust)
    chosen = list(islice(rows, documents))
    if not chosen:
        raise UserError(f"no documents in {source}: give others with `input`")
    compared = Documents(source, [row.text for row in chosen], [row.labels for row in chosen])
    with folder_written_whole(folder) as partial:
        size = min(k, len(tagger.names))
        report = Export(tagger, format, int8, size, batch_size).write(partial, compared)
    main = report[MODELS[format]]
    print_summary(
        parity=f"{main['same']:,} of {main['documents']:,} documents with the same top 5, {main['tied']:,} but for "
        f"ties; scores differ by up to {main['difference']:.1e}",
        **{f"documents/s, {key}": f"{row['speed']:,.0f}" for key, row in report.items() if isinstance(row, dict)},
        seconds=f"{time.perf_counter() - start:.1f}",
        folder=out,
    )


def given_documents(path: str, text_column: str, label_column: str) -> tuple[str, Iterator[Document]]:
    """Documents of a file, and its name."""
    return Path(path).name, read_documents(Path(path), Format(text_column, label_column), FirstBadRow())


def test_documents(tagger: Tagger, ckpt: str, trust: Sequence[str] | None) -> tuple[str, Iterator[Document]]:
    """Test documents of the corpus of a checkpoint, or those of another split if it has none."""
    try:
        corpus = build_data(yaml.safe_load(tagger.module.config_text or "")["data"], trust or ()).corpus
        split = next(name for name in ("test", "val", "train") if name in corpus.sources)
    except Exception as error:  # a corpus class may raise anything
        raise UserError(
            f"{ckpt}: its corpus is not available ({first_line(error)}): give documents with `input`"
        ) from error
    return f"{corpus.name}, {split}", corpus.sources[split].read(lambda _: None)
