"""Base class of all datamodules: prepares a corpus and serves batches."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.sparse import csr_array
from torch.utils.data import DataLoader

from datamodules.augment import Augmentation, RowsWithCopies
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.cached_vectors import cached_vectors
from datamodules.prepare.corpus import Corpus, with_merged_val
from datamodules.prepare.dense_vectors import Encode, VectorCache
from datamodules.prepare.find_files import find_file, find_files
from datamodules.prepare.known_labels import Known
from datamodules.prepare.label_texts import LabelDescription, label_texts, parent_pairs, read_labels
from datamodules.prepare.limits import DEFAULT_LIMITS, Limits
from datamodules.prepare.preparation import Prepared, Settings, prepare
from datamodules.prepare.rows import EncodedRows, pad
from datamodules.prepare.vectors import WordVectors
from datamodules.samplers import LengthBatches
from datamodules.synthetic import SampleCorpus, sample_corpus
from zoo.core.console import note, warn, warn_panel
from zoo.core.errors import MANY, MAX_SEED, UserError, check_low, check_range
from zoo.core.lightning_internals import batches_to_skip, datamodule_of, epochs_done

MAX_PROPENSITY_A = 10  # an exponent; papers have 0.5 to 0.6


class Schedule(Protocol):
    """Part of `callbacks.StageSchedule`, the owner of the current stage, that a datamodule uses."""

    documents: np.ndarray | None  # row numbers of the stage's training documents; None means all

    @property
    def stage_name(self) -> str: ...


class CorpusMissingError(UserError):
    """The corpus is not on disk and cannot be downloaded."""


class TextDataModule(pl.LightningDataModule, ABC):
    """Base class of datamodules: tokenizes a corpus once and serves batches of documents of similar length.

    Subclasses implement `find_corpus`.

    Args:
        batch_size: number of training documents in a batch, per process.
        eval_batch_size: number of validation or test documents in a batch, per process.
        tokenizer: `word` for a vocabulary of the training set, or name or folder of a Hugging Face tokenizer. The
            default is the backbone's own tokenizer, and `word` if it has none.
        max_length: maximum number of tokens of a document, or of each of its windows; the rest is truncated.
        windows: maximum number of windows that a long document is split into. A `Transformer` encodes each on its own;
            all else reads them as one document.
        max_words: maximum size of the word vocabulary; the most frequent words are kept.
        vectors: GloVe or word2vec text file that initializes word embeddings; also searched for under $ZOO_DATA.
        label_texts: file with label descriptions and parent labels; also searched for under $ZOO_DATA.
        unseen_labels: what becomes of labels without training documents: `miss` counts them as misses; with `score`,
            heads that read label texts rank them too, by their descriptions or names.
        val_fraction: share of the training documents to validate on, if the corpus has no validation split.
        limit_train: maximum number of training documents; a hash of their ids selects them.
        merge_val: train on the validation file too, as papers without one do; validation documents are then drawn from
            all of them with `val_fraction`.
        limit_val: maximum number of validation documents, drawn with `seed`; all by default.
        max_bad_rows: maximum number of unreadable rows to tolerate and report.
        limits: largest sizes of what is read, unpacked and downloaded.
        on_missing: `error`, or `sample` to run on a built-in sample if the corpus or the vectors are missing. A folder
            that is given explicitly must hold the corpus.
        idf: weight words or features by inverse document frequency, in TF-IDF. By default, counts are weighted, and
            features with other values, such as TF-IDF itself, are not.
        propensity_a: constant A of the propensity model.
        propensity_b: constant B of the propensity model.
        seed: random seed of splits, limits and the order of batches.
        num_workers: number of data loading processes; batches are cheap to load, so 0 is usually best.
        cache_dir: folder of prepared corpora; by default $ZOO_CACHE or ~/.cache/xmc-zoo.
    """

    def __init__(
        self,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        tokenizer: str | None = None,
        max_length: int = 500,
        windows: int = 1,
        max_words: int = 500_000,
        vectors: str | None = None,
        label_texts: str | None = None,
        unseen_labels: Literal["miss", "score"] = "miss",
        val_fraction: float = 0.1,
        limit_train: int | None = None,
        merge_val: bool = False,
        limit_val: int | None = None,
        max_bad_rows: int = 0,
        limits: Limits = DEFAULT_LIMITS,
        on_missing: Literal["sample", "error"] = "error",
        idf: bool | None = None,
        propensity_a: float = 0.55,
        propensity_b: float = 1.5,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        check_range(0, 1, val_fraction=val_fraction)
        if val_fraction in (0, 1):
            raise UserError(f"`val_fraction={val_fraction}` must be between 0 and 1")
        check_low(1, batch_size=batch_size, eval_batch_size=eval_batch_size)
        check_low(1, max_length=max_length, limit_train=limit_train, limit_val=limit_val)
        check_range(1, MANY, windows=windows)
        check_low(3, max_words=max_words)  # padding, unknown words, and a word
        check_low(0, max_bad_rows=max_bad_rows)
        check_range(0, MAX_PROPENSITY_A, propensity_a=propensity_a)
        check_low(1e-6, propensity_b=propensity_b)  # added to counts, which may be 0, before a negative power
        check_range(0, MAX_SEED, seed=seed)
        check_range(0, MANY, num_workers=num_workers)
        self.settings = Settings(tokenizer or "word", max_length, max_words, val_fraction, limit_train, seed, windows)
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.limit_val, self.limits, self.merge_val, self.idf = limit_val, limits, merge_val, idf
        if unseen_labels not in ("miss", "score"):
            raise UserError(f"`unseen_labels={unseen_labels}` is neither miss nor score")
        self.label_texts, self.unseen_labels = label_texts, unseen_labels
        self.vectors, self.max_bad_rows, self.on_missing, self.seed = vectors, max_bad_rows, on_missing, seed
        self.propensity = {"propensity_a": propensity_a, "propensity_b": propensity_b}
        default = os.environ.get("ZOO_CACHE") or Path.home() / ".cache" / "xmc-zoo"
        self.cache_dir = Path(cache_dir or default).expanduser()
        self.vector_coverage: float | None = None  # share of the vocabulary with pretrained vectors
        self.known: Known | None = None  # labels and vocabulary of the model to train further; set before first use
        self.schedule: Schedule | None = None  # set by `StageSchedule`
        self.augmentation: Augmentation | None = None  # set by `TailAugment`

    @staticmethod
    def of(trainer: pl.Trainer) -> TextDataModule | None:
        """Return the trainer's datamodule; None if there is none, or one of another class."""
        data = datamodule_of(trainer)
        return data if isinstance(data, TextDataModule) else None

    @property
    def stage(self) -> str | None:
        """Name of the current stage; None without a schedule."""
        return None if self.schedule is None else self.schedule.stage_name

    @abstractmethod
    def find_corpus(self) -> Corpus:
        """Return the splits, or raise `CorpusMissingError` with the places searched and how to get the corpus."""

    @cached_property
    def corpus(self) -> Corpus:
        try:
            found = self.find_corpus()
            return with_merged_val(found) if self.merge_val else found
        except CorpusMissingError as missing:
            if self.on_missing == "error":
                raise
            warn_panel("This run uses the built-in SAMPLE, not the corpus", str(missing))
            return sample_corpus(SampleCorpus(seed=self.seed))

    @cached_property
    def prepared(self) -> Prepared:
        prepared = prepare(self.corpus, self.settings, self.cache_dir, self.known)
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
        """Label space that models are built from; the first access prepares the corpus."""
        space = self.prepared.space
        space.idf = space.idf if self.idf is None else self.idf
        space.propensity_a, space.propensity_b = self.propensity["propensity_a"], self.propensity["propensity_b"]
        if file := self.label_file():
            labels = self.read_label_file(file)
            texts = label_texts(labels)
            added = space.texts or [""] * space.num_labels  # texts that the file may lack
            space.texts = [texts.get(name) or text for name, text in zip(space.names, added, strict=True)]
            if self.unseen_labels == "score" and self.known is None:
                space.unseen_texts = [texts.get(name, "") for name in space.unseen]
            space.parents = parent_pairs(labels, space.names)
            known = sum(map(bool, space.texts))
            note(f"{file.name}: descriptions of {known:,} of the {space.num_labels:,} labels")
        elif self.unseen_labels == "score" and self.known is None:
            space.unseen_texts = list(space.unseen)
        if space.unseen_texts:
            known = sum(map(bool, space.unseen_texts))
            note(f"{known:,} of the {len(space.unseen):,} labels without training documents are scored by their texts")
        return space

    def label_file(self) -> Path | None:
        """Path to the label-description file; None if there is none."""
        return find_files({"label_texts": self.label_texts}).get("label_texts")

    def read_label_file(self, path: Path) -> dict[str, LabelDescription]:
        """Read names, descriptions and parents of labels."""
        return read_labels(path)

    def label_batches(self, unseen: bool = False) -> Iterator[Batch]:
        """Yield label descriptions (names if there are none) as documents; `rows` of a batch are label numbers.

        Labels without known words are left out. Each of the others comes once over all processes. With `unseen`,
        labels without training documents follow, if they are scored.
        """
        vocabulary, texts = self.prepared.vocabulary, self.space.texts or self.space.names
        texts = [*texts, *(self.space.unseen_texts if unseen else ())]
        if vocabulary.has_values:  # features, which texts cannot be encoded with
            return
        tokens = [np.array(ids) for ids in vocabulary.encode(texts)]
        uninformative = [*vocabulary.special_ids(), vocabulary.unk_id]
        known = np.flatnonzero([not np.isin(ids, uninformative).all() for ids in tokens])
        lengths = np.array([len(ids) for ids in tokens])
        for rows in self._sampler(lengths, self.eval_batch_size, known) if len(known) else ():
            labels = [max(row, ~row) for row in rows]
            ids, mask = pad([tokens[label] for label in labels], vocabulary.pad_id)
            none = Targets.from_lists([[] for _ in labels])
            kept = torch.tensor([max(row, -1) for row in rows])
            yield Batch(ids, mask, none, kept, window=vocabulary.window)

    def word_vectors(self) -> WordVectors | None:
        """Load the initial word embeddings, which are cached with the prepared corpus."""
        if self.vectors is None:
            return None
        found = find_file(self.vectors)
        if found is None:
            message = f"no word vectors at {self.vectors}, neither as given nor under $ZOO_DATA"
            if self.on_missing == "error":
                raise UserError(f"{message}; leave out `vectors` to initialize word embeddings randomly")
            warn(f"{message}: word embeddings are initialized randomly")
            return None
        vectors = cached_vectors(found, self.prepared, self.seed)
        self.vector_coverage = vectors.coverage
        note(f"{found.name}: vectors for {vectors.coverage:.1%} of the {self.space.vocab_size:,} words")
        return vectors

    def train_targets(self) -> Targets:
        """Return the labels of all training documents, in corpus order."""
        return self.targets("train")

    def targets(self, split: str) -> Targets:
        """Return the labels of all documents of a split, in corpus order."""
        return self._rows(split).targets()

    def train_words(self, lead: int = 0) -> csr_array:
        """Return the token counts of training documents, in corpus order, (documents, vocabulary); see `bags`."""
        return self._rows("train").token_counts(self.space.vocab_size, lead)

    def vector_cache(self, split: str, encoder: str, dim: int, encode: Encode | None = None) -> VectorCache:
        """Return the cache of the document vectors of a split by an encoder, given by its digest."""
        return VectorCache(self.cache_dir, self._rows(split), encoder, dim, encode, self.eval_batch_size)

    def _augmentation(self, stage: str | None) -> Augmentation | None:
        return self.augmentation if self.augmentation and self.augmentation.stage == stage else None

    def documents_of(self, stage: str | None, chosen: np.ndarray | None) -> np.ndarray | None:
        """Return the row numbers of a stage's training documents and their augmented copies; None means all."""
        if (augmentation := self._augmentation(stage)) is None:
            return chosen
        targets = self.train_targets()
        return augmentation.with_copies(np.arange(len(targets)) if chosen is None else chosen, targets, self.space)

    def augmented(
        self, stage: str, words: csr_array, targets: Targets, rows: np.ndarray | None = None
    ) -> tuple[csr_array, Targets]:
        """Append the augmented copies of a stage to training documents (`rows`, or all) given as word weights."""
        if (augmentation := self._augmentation(stage)) is None:
            return words, targets
        every = self.train_targets()
        rows = np.arange(len(every)) if rows is None else rows
        copies = augmentation.with_copies(rows, every, self.space)[len(rows) :]
        return augmentation.append_copies(words, targets, rows, copies, len(every))

    def train_dataloader(self) -> DataLoader[Batch]:
        rows = self._rows("train")
        chosen = self.documents_of(self.stage, None if self.schedule is None else self.schedule.documents)
        epoch = skip = 0
        if self.trainer is not None:
            # With worker processes, Lightning calls `set_epoch` only after they have started to read, and it does not
            # skip batches when a run resumes within an epoch. So we pass both to the sampler here.
            epoch, skip = epochs_done(self.trainer), batches_to_skip(self.trainer)
        sampler = self._sampler(rows.lengths, self.batch_size, chosen, shuffle=True, epoch=epoch, skip=skip)
        if (augmentation := self._augmentation(self.stage)) is None:
            return self._loader(rows, sampler)
        return self._loader(RowsWithCopies(rows, augmentation, self.prepared.vocabulary.special_ids()), sampler)

    def pass_dataloader(self, split: str = "train", chosen: np.ndarray | None = None) -> DataLoader[Batch]:
        """Iterate once over the documents of a split, or the chosen ones, divided among all processes."""
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
            raise UserError(f"{self.corpus_name} has no {split} documents")
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
            batch_size=None,  # the sampler yields batches of row numbers, which the dataset collates
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            # Without a generator, every new iterator draws from the global one, so a resumed run would differ.
            generator=torch.Generator().manual_seed(self.seed),
        )
