"""From a corpus to batches: what every datamodule of the zoo shares."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from filelock import FileLock
from scipy.sparse import csr_array
from torch.utils.data import DataLoader

from datamodules.augment import Augmentation, RowsWithCopies
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.errors import UserError
from datamodules.files import written_whole
from datamodules.label_texts import read_label_texts
from datamodules.prepare import Corpus, Prepared, Settings, cache_errors, prepare
from datamodules.progress import note, warn_panel
from datamodules.rows import EncodedRows, pad
from datamodules.sample import SampleCorpus, sample_corpus
from datamodules.samplers import LengthBatches
from datamodules.vectors import WordVectors, read_vectors


class CorpusMissingError(UserError):
    """The corpus is neither on disk nor to be downloaded."""


class TextDataModule(pl.LightningDataModule, ABC):
    """Documents with labels, tokenised once and served in batches of like length.

    Args:
        batch_size: training documents in a batch, for each process.
        eval_batch_size: documents in a batch of validation and test.
        tokenizer: `word` for a vocabulary of the training set, or a Hugging Face tokenizer by name or folder; by
            default the backbone's own, and `word` where it has none.
        max_length: tokens kept of a document, from its beginning.
        max_words: size of the word vocabulary at most, by document frequency.
        vectors: GloVe or word2vec text file to start word embeddings from; also looked for in $ZOO_DATA.
        label_texts: file that says what labels mean, and which are their parents; also looked for in $ZOO_DATA.
        val_fraction: share of the training documents to validate on where the corpus has no such split.
        limit_train: train on so many documents, chosen by a hash of their ids.
        limit_val: validate on so many documents, drawn with `seed`; all by default.
        max_bad_rows: tolerate so many unreadable rows; they are reported.
        on_missing: `sample` runs on a built-in sample where the corpus or the vectors cannot be had.
        propensity_a: constant A of the propensity model.
        propensity_b: constant B of the propensity model.
        seed: decides splits, limits and the order of batches.
        num_workers: processes that load batches; 0 is right for most, since batches are cheap.
        cache_dir: where prepared corpora live; by default $ZOO_CACHE or ~/.cache/xmc-zoo.
    """

    def __init__(
        self,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        tokenizer: str | None = None,
        max_length: int = 500,
        max_words: int = 500_000,
        vectors: str | None = None,
        label_texts: str | None = None,
        val_fraction: float = 0.1,
        limit_train: int | None = None,
        limit_val: int | None = None,
        max_bad_rows: int = 0,
        on_missing: Literal["sample", "error"] = "error",
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        if not 0 < val_fraction < 1:
            raise UserError(f"--data.val_fraction={val_fraction} is not between 0 and 1")
        limits = [limit for limit in (limit_train, limit_val) if limit is not None]
        if min(batch_size, eval_batch_size, max_length, *limits) < 1:
            raise UserError(
                "--data.batch_size, eval_batch_size, max_length, limit_train and limit_val must be at least 1"
            )
        self.settings = Settings(tokenizer or "word", max_length, max_words, val_fraction, limit_train, seed)
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.limit_val = limit_val
        self.label_texts = label_texts
        self.vectors, self.max_bad_rows, self.on_missing, self.seed = vectors, max_bad_rows, on_missing, seed
        self.propensity = {"propensity_a": propensity_a, "propensity_b": propensity_b}
        default = os.environ.get("ZOO_CACHE") or Path.home() / ".cache" / "xmc-zoo"
        self.cache_dir = Path(cache_dir or default).expanduser()
        self.vector_coverage: float | None = None  # share of words that pretrained vectors were found for
        self.chosen: np.ndarray | None = None  # training documents to take, of `train_targets`; all if not given
        self.stage: str | None = None  # for whose training documents are served
        self.augmentation: Augmentation | None = None  # in its stage documents with rare labels come with copies

    @abstractmethod
    def find_corpus(self) -> Corpus:
        """The splits, or `CorpusMissingError` with a line that says where it looked and how to get them."""

    @cached_property
    def corpus(self) -> Corpus:
        try:
            return self.find_corpus()
        except CorpusMissingError as missing:
            if self.on_missing == "error":
                raise
            warn_panel("This run uses the built-in SAMPLE, not the corpus", str(missing))
            return sample_corpus(SampleCorpus(seed=self.seed))

    @cached_property
    def prepared(self) -> Prepared:
        prepared = prepare(self.corpus, self.settings, self.cache_dir)
        for line in prepared.report:
            note(f"{self.corpus_name}: {line}")
        return prepared

    @property
    def corpus_name(self) -> str:
        return self.corpus.name

    @property
    def is_sample(self) -> bool:
        return self.corpus.is_sample

    @cached_property
    def space(self) -> LabelSpace:
        """What models are built from; asking for it prepares the corpus."""
        space = self.prepared.space
        space.propensity_a, space.propensity_b = self.propensity["propensity_a"], self.propensity["propensity_b"]
        if file := self.label_file():
            texts = read_label_texts(file)
            space.texts = [texts.get(name, "") for name in space.names]
            known = sum(map(bool, space.texts))
            note(f"{file.name}: texts of {known:,} of the {space.num_labels:,} labels")
        return space

    def label_file(self) -> Path | None:
        """Where it stands what labels mean."""
        if self.label_texts is None:
            return None
        if (found := find_file(self.label_texts)) is None:
            raise UserError(f"no such file: {self.label_texts} (--data.label_texts), nor there under $ZOO_DATA")
        return found

    def label_batches(self) -> Iterator[Batch]:
        """Texts of labels as documents, numbered by `rows`; each that has words, once over all processes together.

        Where nobody has said what labels mean, their names are the texts.
        """
        vocabulary, texts = self.prepared.vocabulary, self.space.texts or self.space.names
        if vocabulary.has_values:  # no text means anything to it
            return
        tokens = [np.array(ids) for ids in vocabulary.encode(texts)]
        nothing = [*vocabulary.special_ids(), vocabulary.unk_id]
        known = np.flatnonzero([not np.isin(ids, nothing).all() for ids in tokens])
        lengths = np.array([len(ids) for ids in tokens])
        for rows in self._sampler(lengths, self.eval_batch_size, known) if len(known) else ():
            labels = [max(row, ~row) for row in rows]
            ids, mask = pad([tokens[label] for label in labels], vocabulary.pad_id)
            none = Targets.from_lists([[] for _ in labels])
            yield Batch(ids, mask, none, torch.tensor([max(row, -1) for row in rows]))

    def word_vectors(self) -> WordVectors | None:
        """Initial word embeddings, read once and kept beside the prepared corpus."""
        if self.vectors is None:
            return None
        found = find_file(self.vectors)
        if found is None:
            message = f"no word vectors at {self.vectors}, nor there under $ZOO_DATA"
            if self.on_missing == "error":
                raise UserError(f"{message}; leave out --data.vectors to start from random ones")
            note(f"{message}: word embeddings start from random ones")
            return None
        stat = found.stat()
        cached = self.prepared.folder / f"vectors-{found.name}-{stat.st_size}-{stat.st_mtime_ns}.npz"
        with cache_errors(self.cache_dir), FileLock(cached.with_suffix(".lock")):
            if not cached.exists():
                vocabulary = self.prepared.vocabulary
                read = read_vectors(found, vocabulary.words(), vocabulary.size, vocabulary.pad_id, self.seed)
                with written_whole(cached) as aside:
                    np.savez(aside, matrix=read.matrix.numpy(), coverage=read.coverage)
        stored = np.load(cached)
        vectors = WordVectors(torch.from_numpy(stored["matrix"]), float(stored["coverage"]))
        self.vector_coverage = vectors.coverage
        note(f"{found.name}: vectors for {vectors.coverage:.1%} of the {self.space.vocab_size:,} words")
        return vectors

    def train_targets(self) -> Targets:
        """Labels of all training documents, in corpus order."""
        return self.targets("train")

    def targets(self, split: str) -> Targets:
        """Labels of all documents of a split, in corpus order."""
        return self._rows(split).targets()

    def train_words(self, lead: int = 0) -> csr_array:
        """How often each training document has each token, in corpus order, (documents, vocabulary); see `bags`."""
        return self._rows("train").token_counts(self.space.vocab_size, lead)

    def _augmentation(self, stage: str | None) -> Augmentation | None:
        """What is done in this stage, if anything."""
        return self.augmentation if self.augmentation and self.augmentation.stage == stage else None

    def documents_of(self, stage: str | None, chosen: np.ndarray | None) -> np.ndarray | None:
        """Row numbers of a stage's training documents, with those of copies past the end; None means all."""
        if (augmentation := self._augmentation(stage)) is None:
            return chosen
        targets = self.train_targets()
        return augmentation.with_copies(np.arange(len(targets)) if chosen is None else chosen, targets, self.space)

    def augmented(
        self, stage: str, words: csr_array, targets: Targets, rows: np.ndarray | None = None
    ) -> tuple[csr_array, Targets]:
        """Training documents (`rows` of them, if given) as weights of words, with the copies of this stage added."""
        if (augmentation := self._augmentation(stage)) is None:
            return words, targets
        every = self.train_targets()
        rows = np.arange(len(every)) if rows is None else rows
        copies = augmentation.with_copies(rows, every, self.space)[len(rows) :]
        return augmentation.with_bags(words, targets, rows, copies, len(every))

    def train_dataloader(self) -> DataLoader[Batch]:
        rows, chosen = self._rows("train"), self.documents_of(self.stage, self.chosen)
        epoch = skip = 0
        if self.trainer is not None:
            # The sampler is given its place when it is built: with worker processes Lightning's own call comes
            # after they have begun to read, and nobody else skips what was seen before a resume inside an epoch.
            loop = self.trainer.fit_loop
            epoch = loop.epoch_progress.current.processed  # type: ignore[attr-defined]
            skip = loop.epoch_loop.batch_progress.current.ready if loop.restarting else 0
        sampler = self._sampler(rows.lengths, self.batch_size, chosen, shuffle=True, epoch=epoch, skip=skip)
        if (augmentation := self._augmentation(self.stage)) is None:
            return self._loader(rows, sampler)
        return self._loader(RowsWithCopies(rows, augmentation, self.prepared.vocabulary.special_ids()), sampler)

    def pass_dataloader(self, split: str = "train", chosen: np.ndarray | None = None) -> DataLoader[Batch]:
        """Every document of a split, or each that is chosen, once over all processes together."""
        return self._eval_loader(split, chosen)

    def val_dataloader(self) -> DataLoader[Batch]:
        chosen = None
        if self.limit_val is not None:
            drawn = np.random.default_rng(self.seed).permutation(len(self._rows("val")))
            chosen = np.sort(drawn[: self.limit_val])
        return self._eval_loader("val", chosen)

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._eval_loader("test")

    def _eval_loader(self, split: str, chosen: np.ndarray | None = None) -> DataLoader[Batch]:
        rows = self._rows(split)
        return self._loader(rows, self._sampler(rows.lengths, self.eval_batch_size, chosen))

    def _rows(self, split: str) -> EncodedRows:
        rows = self.prepared.rows(split)
        if not len(rows):
            raise UserError(f"{self.corpus_name}: there are no {split} documents")
        return rows

    def _sampler(
        self, lengths: np.ndarray, batch_size: int, chosen: np.ndarray | None = None, **kwargs: Any
    ) -> LengthBatches:
        if chosen is not None and not len(chosen):
            raise UserError(f"{self.corpus_name}: the stage has no documents to train on")
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return LengthBatches(lengths, batch_size, chosen=chosen, seed=self.seed, rank=rank, world=world, **kwargs)

    def _loader(self, rows: EncodedRows | RowsWithCopies, sampler: LengthBatches) -> DataLoader[Batch]:
        return DataLoader(
            rows,
            sampler=sampler,
            batch_size=None,  # the sampler yields whole batches, the rows collate them
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            # of its own: otherwise each new iterator draws from the global state, and a resumed run makes one fewer
            generator=torch.Generator().manual_seed(self.seed),
        )


def find_file(path: str) -> Path | None:
    """The path as given, or under $ZOO_DATA."""
    places = [Path(path).expanduser()]
    if root := os.environ.get("ZOO_DATA"):
        places.append(Path(root).expanduser() / path)
    return next((place for place in places if place.is_file()), None)
