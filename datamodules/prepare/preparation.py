"""Preparation of a corpus: encoded rows, vocabulary and label space, in a cache keyed by content and settings."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from filelock import FileLock

from datamodules.batch import LabelSpace
from datamodules.prepare.cache import find_defect, write_manifest
from datamodules.prepare.corpus import SPLITS, Corpus, alike
from datamodules.prepare.known_labels import Known
from datamodules.prepare.readers import Document
from datamodules.prepare.rows import CHUNK, Columns, EncodedRows, RowWriter, stored_columns
from datamodules.prepare.threads import map_in_threads
from datamodules.prepare.tokens import (
    CorpusTokenizer,
    FeatureTokenizer,
    NameIndex,
    PretrainedTokenizer,
    TokenizedChunk,
    Tokens,
    WordTokenizer,
)
from datamodules.prepare.vocabulary import Vocabulary, load_pretrained
from zoo.core.console import progress_bar, warn
from zoo.core.errors import UserError
from zoo.core.files import folder_written_whole
from zoo.core.hashing import hash64
from zoo.core.ragged import Lists

VERSION = 3  # of the cache format; increase it with every change
VOCABULARY, FACTS = "tokenizer.json", "facts.json"
FILES = [*(f"{split}.arrow" for split in SPLITS), VOCABULARY, FACTS]
LONGEST_NAME = 80  # characters of the corpus name in the folder name
CHUNK_CHARACTERS = 1 << 23  # bounds the memory of a chunk of long documents
Chunk = list[tuple[str, Document]]  # documents with their splits


@dataclass(frozen=True)
class Settings:
    """Settings that the cached rows depend on; they are part of the cache key."""

    tokenizer: str = "word"
    max_length: int = 500
    max_words: int = 500_000
    val_fraction: float = 0.1
    limit_train: int | None = None
    seed: int = 0
    windows: int = 1


@dataclass
class Prepared:
    """Prepared corpus in a cache folder: encoded rows of each split, vocabulary and label space."""

    folder: Path
    vocabulary: Vocabulary
    space: LabelSpace
    report: list[str] = field(default_factory=list)  # remarks for the user

    def rows(self, split: str) -> EncodedRows:
        try:
            return EncodedRows(self.folder / f"{split}.arrow", self.space.pad_id, self.vocabulary.window)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"the cache {self.folder} was removed or damaged during the run: run again") from error


def prepare(corpus: Corpus, settings: Settings, cache: Path, known: Known | None = None) -> Prepared:
    """Load a prepared corpus from the cache, or prepare it; a lock lets only one process write."""
    pretrained = None
    if known is not None:
        pretrained = known.encoder(settings.max_length, settings.windows)
    elif settings.tokenizer != "word":
        if corpus.has_features:
            raise UserError(
                f"{corpus.name} contains features, not texts, which the tokenizer {settings.tokenizer} cannot read: "
                "choose a backbone without a tokenizer, such as `backbone=Bow`, and leave out `tokenizer`"
            )
        pretrained = load_pretrained(settings.tokenizer, settings.max_length, settings.windows)
    if corpus.has_features and settings.windows > 1:
        raise UserError(f"`windows={settings.windows}`: {corpus.name} contains features, which have no order")
    name = re.sub(r"[^\w.-]+", "_", corpus.name)[:LONGEST_NAME]  # users may choose any name
    key = _key(corpus, settings, pretrained, known)
    folder = cache / f"{name}-{key}"
    with cache_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if (defect := find_defect(folder, FILES)) is not None:
                if defect:
                    warn(f"the cache {folder} is damaged ({defect}): the corpus is prepared again")
                with folder_written_whole(folder) as partial:
                    _Preparation(corpus, settings, pretrained, partial, known).run()
                    if (
                        _key(corpus, settings, pretrained, known) != key
                    ):  # or the cache would serve it for the old files
                        raise UserError(f"{corpus.name} changed while it was read: run again once it is complete")
                    write_manifest(partial, folder.name, FILES)
            facts = json.loads((folder / FACTS).read_text("utf8"))
            text = (folder / VOCABULARY).read_text("utf8")
            vocabulary = Vocabulary.from_text(text, settings.max_length, settings.windows)
    return Prepared(folder, vocabulary, LabelSpace(**facts["space"]), facts["report"])


@contextmanager
def cache_errors(cache: Path) -> Iterator[None]:
    """Turn errors of writing the cache into a one-line `UserError`."""
    try:
        yield
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)
        raise UserError(
            f"cannot write the cache {cache}: {what}; choose another with `cache_dir` or $ZOO_CACHE"
        ) from error


def _key(corpus: Corpus, settings: Settings, pretrained: Vocabulary | None, known: Known | None) -> str:
    values = asdict(settings)
    if settings.windows == 1:  # caches from before there were windows are valid
        del values["windows"]
    parts = [VERSION, values, {name: source.fingerprint() for name, source in corpus.sources.items()}]
    if pretrained is not None:
        parts.append(hashlib.blake2b(pretrained.text.encode()).hexdigest())
    if known is not None:
        parts.append(asdict(known.space))
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


class _Preparation:
    """Single pass over a corpus with provisional ids of tokens and labels, which are remapped at the end."""

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        pretrained: Vocabulary | None,
        folder: Path,
        known: Known | None = None,
    ) -> None:
        self.known = known
        self.corpus, self.settings, self.folder = corpus, settings, folder
        kind = FeatureTokenizer if corpus.has_features else WordTokenizer
        self.tokenizer: CorpusTokenizer = kind(settings.max_words, settings.max_length, settings.windows)
        if pretrained is not None:
            self.tokenizer = PretrainedTokenizer(pretrained)
        self.splits_train = "val" not in corpus.sources
        self.train_limit = 2**64 - 1  # largest hash of the training documents that `limit_train` keeps
        self.facts, self.labels = Counter[str](), NameIndex()
        self.counts, self.reference = Counter[str](), Counter[str]()  # training documents of each label
        self.seen_ids = {split: array("Q") for split in SPLITS}  # hashes, 8 bytes per document
        self.taught = np.zeros(0, dtype=bool)  # labels with a training document with known tokens

    def run(self) -> None:
        limited = self.settings.limit_train is not None
        size = sum(source.size for source in self.corpus.sources.values())
        first = self.folder / "first"
        first.mkdir()
        with progress_bar(f"Preparing {self.corpus.name}") as bar:
            self.advance = bar(size + self.corpus.sources["train"].size * limited)
            if limited:
                self._find_limit()
            self._read(first)
        vocabulary = self.tokenizer.vocabulary()
        space = self._space(vocabulary)
        self._remap(first, space)
        shutil.rmtree(first)
        report = self._report(space) + [line for s in self.corpus.sources.values() for line in s.report()]
        (self.folder / VOCABULARY).write_text(vocabulary.text, "utf8")
        (self.folder / FACTS).write_text(json.dumps({"space": asdict(space), "report": report}), "utf8")

    def _read(self, folder: Path) -> None:
        """Write every document, with provisional ids, to the file of its split."""
        with self._writers(folder) as writers:
            for source in self.corpus.sources:
                for chunk, tokenized in map_in_threads(self._tokenize, self._chunks(source)):
                    self._write(chunk, self.tokenizer.index(tokenized), writers)
                if source == "train":
                    self._require_training()

    @contextmanager
    def _writers(self, folder: Path) -> Iterator[dict[str, RowWriter]]:
        with ExitStack() as stack:
            files = {split: RowWriter(folder / f"{split}.arrow", self.tokenizer.has_values) for split in SPLITS}
            yield {split: stack.enter_context(file) for split, file in files.items()}

    def _chunks(self, source: str) -> Iterator[Chunk]:
        """Group the documents that are kept into chunks."""
        chunk: Chunk = []
        characters = 0
        for split, document in self._documents(source):
            self._count(source, split, document)
            if split:
                chunk.append((split, document))
                characters += len(document.text)
            if len(chunk) == CHUNK or characters > CHUNK_CHARACTERS:
                yield chunk
                chunk, characters = [], 0
        if chunk:
            yield chunk

    def _tokenize(self, chunk: Chunk) -> TokenizedChunk:
        counted = np.array([split == "train" for split, _ in chunk])
        return self.tokenizer.tokenize([document.text for _, document in chunk], counted)

    def _write(self, chunk: Chunk, tokens: Tokens, writers: dict[str, RowWriter]) -> None:
        rows_of_labels = [self.labels.lookup(document.labels) for _, document in chunk]
        labels = Lists.of_sizes([len(row) for row in rows_of_labels], np.concatenate(rows_of_labels))
        ids = pa.array([document.id for _, document in chunk], pa.string())
        rows = Columns(ids, tokens.ids, labels, tokens.values).batch()
        splits = np.array([split for split, _ in chunk])
        for split in dict.fromkeys(splits.tolist()):
            writers[split].write_batch(rows.filter(pa.array(splits == split)))

    def _remap(self, first: Path, space: LabelSpace) -> None:
        """Replace provisional ids by those of the vocabulary and the label space."""
        label_ids = np.zeros(len(self.labels), dtype=np.int32)
        label_ids[self.labels.lookup(space.names + space.unseen)] = np.arange(space.num_all)
        self.taught = np.zeros(space.num_all, dtype=bool)
        with self._writers(self.folder) as writers:
            for split, writer in writers.items():
                for rows in stored_columns(first / f"{split}.arrow"):
                    tokens = self.tokenizer.remap(Tokens(rows.tokens, rows.values))
                    labels = Lists(rows.labels.offsets, label_ids[rows.labels.values]).sets()
                    if split == "train":
                        self.taught[labels.only(self.tokenizer.informative(tokens)).values] = True
                    writer.write_batch(Columns(rows.ids, tokens.ids, labels, tokens.values).batch())

    def _documents(self, source: str) -> Iterator[tuple[str, Document]]:
        """Yield documents with their split; "" marks those that are left out."""
        kept = 0
        for number, document in enumerate(self.corpus.sources[source].read(self.advance), 1):
            split = self._split_of(source, document, document.id or f"row-{number}")
            if split == "train" == source:
                kept += 1
                split = "train" if kept <= (self.settings.limit_train or kept) else ""  # repeated ids share a hash
            yield split, document

    def _split_of(self, source: str, document: Document, key: str) -> str:
        if source != "train":
            return source
        if not document.labels:
            return ""
        if self.splits_train and self._hash("val", key) < self.settings.val_fraction * 2**64:
            return "val"
        return "train" if self._hash("limit", key) <= self.train_limit else ""

    def _hash(self, purpose: str, key: str) -> int:
        return hash64(f"{purpose} {self.settings.seed} {key}")

    def _find_limit(self) -> None:
        """Find the hash limit. `limit_train` keeps the smallest hashes, so the choice does not depend on the order."""
        hashes = array("Q")
        for number, document in enumerate(self.corpus.sources["train"].read(self.advance), 1):
            key = document.id or f"row-{number}"
            if self._split_of("train", document, key) == "train":
                hashes.append(self._hash("limit", key))
        limit = self.settings.limit_train or 0
        if limit < len(hashes):
            self.train_limit = int(np.partition(np.frombuffer(hashes, dtype=np.uint64), limit - 1)[limit - 1])

    def _count(self, source: str, split: str, document: Document) -> None:
        self.facts[split] += 1
        self.facts["empty"] += not document.text.strip()
        self.facts["unlabelled"] += not document.labels and not split
        if split and document.id:
            self.seen_ids[split].append(self._hash("id", document.id))
        if split and source == "train":
            self.facts["reference"] += 1
            self.reference.update(document.labels)
            if split == "train":
                self.counts.update(document.labels)

    def _require_training(self) -> None:
        if not self.facts["train"]:
            advice = "no document of the training files has a label: see `label_column`"
            if self.facts["reference"]:
                advice = "every labelled document was split off for validation: lower `val_fraction`"
            raise UserError(f"{self.corpus.name}: {advice}")

    def _space(self, vocabulary: Vocabulary) -> LabelSpace:
        if self.known is not None:
            self.labels.lookup(self.known.space.labels)  # those without documents here
            return self.known.space_with(self.counts, self.labels)
        names = sorted(self.counts, key=lambda name: (-self.counts[name], name))
        unseen = sorted(self.reference.keys() - self.counts.keys())
        unseen += [name for name in self.labels if name not in self.reference]  # in order of appearance
        return LabelSpace(
            names=names,
            counts=[self.counts[name] for name in names],
            num_documents=self.facts["train"],
            idf=self.tokenizer.has_counts,
            vocab_size=vocabulary.size,
            pad_id=vocabulary.pad_id,
            unseen=unseen,
            reference_counts=[self.reference[name] for name in names + unseen],
            reference_documents=self.facts["reference"],
        )

    def _report(self, space: LabelSpace) -> list[str]:
        """Remarks for the user: everything that affects results."""
        lines = []
        if self.facts["unlabelled"]:
            lines.append(f"{self.facts['unlabelled']:,} training documents without labels were left out")
        if self.facts["empty"]:
            what = "features" if self.corpus.has_features else "text"
            lines.append(f"{self.facts['empty']:,} documents have no {what}")
        if space.unseen:
            lines.append(f"{len(space.unseen):,} labels occur in no training document")
        if untaught := np.count_nonzero(~self.taught[: space.num_labels]):
            lines.append(f"{untaught:,} labels have only training documents without known tokens")
        if groups := len(alike(self.labels)):
            lines.append(f"{groups:,} groups of labels differ only in case or spaces, but count as different labels")
        seen = {split: np.unique(np.frombuffer(ids, dtype=np.uint64)) for split, ids in self.seen_ids.items()}
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            both = np.intersect1d(seen[one], seen[other], assume_unique=True)
            if len(both):
                lines.append(f"{len(both):,} ids occur in both {one} and {other}")
        return lines
