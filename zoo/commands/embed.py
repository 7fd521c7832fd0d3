"""`zoo data embed`: document vectors of a pretrained encoder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from backbones import Backbone, Transformer, WordTransformer
from datamodules import Batch, TextDataModule
from datamodules.prepare.corpus import SPLITS, Corpus
from datamodules.prepare.dense_vectors import BLOCK
from datamodules.prepare.readers import Format
from zoo.commands.find_corpus import find_corpus
from zoo.commands.output import plain_console, split_names
from zoo.core.console import note, progress_bar
from zoo.core.errors import UserError, check_low
from zoo.core.files import atomic_write
from zoo.training.known_vectors import cache_key

PRECISION = "32-true"  # of a run by default; vectors in another one differ


class FoundCorpus(TextDataModule):
    """A corpus that was found by its name or path."""

    def __init__(self, found: Corpus, **settings: Any) -> None:
        super().__init__(**settings)
        self.found = found

    def find_corpus(self) -> Corpus:
        return self.found


def embed(
    path: str,
    *,
    encoder: str,
    max_length: int = 256,
    windows: int = 1,
    pooling: Literal["mean", "cls"] = "mean",
    combine: Literal["mean", "max"] = "mean",
    words: bool = False,
    max_words_read: int = 600,
    limit_train: int | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
    splits: str | None = None,
    batch_size: int = 64,
    out: str | None = None,
    text_column: str = "text",
    label_column: str = "labels",
    id_column: str = "id",
    label_sep: str | None = None,
) -> None:
    """Compute the document vectors of a pretrained encoder.

    They are kept in the cache, where runs with the same corpus and the same encoder find them; a command that was
    killed continues where it was.

    Args:
        path: name of a corpus, folder with train, val and test files, or a single file (as train).
        encoder: name on the Hugging Face hub, or folder, of a pretrained encoder.
        max_length: maximum number of tokens of a document, or of each of its windows.
        windows: maximum number of windows that a long document is split into.
        pooling: vector of a window: `mean` over its tokens, or `cls`, the state of the classification token.
        combine: vector of a document: `mean` or `max` over its windows.
        words: read words of the corpus as `WordTransformer` does, not the original texts.
        max_words_read: maximum number of words of a document, `data.max_length` of a run, with `words`.
        limit_train: maximum number of training documents.
        val_fraction: share of the training documents to validate on, if the corpus has no validation split.
        seed: random seed of splits and limits.
        splits: splits to embed, separated by commas (default: train,val,test).
        batch_size: number of documents that are encoded together.
        out: folder to write train.npy, val.npy and test.npy to.
        text_column: column of the text.
        label_column: column of the labels.
        id_column: column of the document id.
        label_sep: separator of labels within a string (default: a comma).

    Examples:
        zoo data embed reuters --encoder sentence-transformers/all-MiniLM-L6-v2
        zoo data embed eurlex57k --encoder my_minilm/ --max_length 128 --windows 4
        zoo data embed my.csv --encoder my_minilm/ --out vectors/
    """
    check_low(1, batch_size=batch_size, max_words_read=max_words_read)
    chosen = SPLITS if splits is None else split_names("splits", splits)
    if unknown := [split for split in chosen if split not in SPLITS]:
        raise UserError(f"`splits={unknown[0]}` is none of {', '.join(SPLITS)}")
    folder = None if out is None else output_folder(out)
    corpus = find_corpus(path, Format(text_column, label_column, id_column, label_sep))
    shared = {"limit_train": limit_train, "val_fraction": val_fraction, "seed": seed, "eval_batch_size": batch_size}
    backbone: Backbone
    if words:
        data = FoundCorpus(corpus, max_length=max_words_read, **shared)
        backbone = WordTransformer(data.space, encoder, max_length, windows, pooling, combine)
        backbone.learn_words(data.prepared.vocabulary)
    else:
        data = FoundCorpus(corpus, tokenizer=encoder, max_length=max_length, windows=windows, **shared)
        backbone = Transformer(data.space, encoder, pooling=pooling, combine=combine)
        check_length(backbone, max_length)
    backbone = backbone.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    for split in chosen:
        if len(data.prepared.rows(split)):
            vectors = embed_split(data, backbone, split)
            if folder is not None:
                with atomic_write(folder / f"{split}.npy") as aside:
                    np.save(aside, vectors.numpy())


def output_folder(out: str) -> Path:
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"`out={out}` cannot be a folder: {error.strerror or error}") from error
    return folder


def check_length(backbone: Backbone, max_length: int) -> None:
    if backbone.max_length is not None and max_length > backbone.max_length:
        raise UserError(f"`max_length={max_length}`: the encoder reads at most {backbone.max_length:,} tokens")


def embed_split(data: TextDataModule, backbone: Backbone, split: str) -> Tensor:
    """Load the vectors of a split, or compute them with a progress bar."""
    device = next(backbone.parameters()).device

    @torch.inference_mode()
    def encode(batch: Batch) -> Tensor:
        vectors: Tensor = backbone(batch.to(device)).pooled
        return vectors

    cache = data.vector_cache(split, cache_key(backbone, PRECISION), backbone.dim, encode)
    vectors, start = cache.load(), time.perf_counter()
    if vectors is None:
        missing = cache.missing()
        if resumed := cache.num_blocks - len(missing):
            note(f"{split}: {resumed:,} of {cache.num_blocks:,} blocks of {BLOCK} documents are there already")

        def shown(steps: range) -> Iterator[int]:
            with progress_bar(f"Embedding {data.corpus_name} {split}") as begin:
                advance = begin(len(steps))
                for step in steps:
                    yield step
                    advance(1)

        cache.compute(shown)
        vectors = cache.finish()
        seconds = time.perf_counter() - start
        rate = min(len(missing) * BLOCK, len(vectors)) / seconds
        plain_console().print(f"{split}: {len(vectors):,} documents, {seconds:,.1f} s, {rate:,.0f} documents/s")
    else:
        plain_console().print(f"{split}: {len(vectors):,} documents, in the cache already")
    plain_console().print(f"  {cache.folder}")
    return vectors
