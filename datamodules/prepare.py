"""A corpus becomes encoded rows, a vocabulary and a label space: once, into a cache keyed by content and settings."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from filelock import FileLock

from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from datamodules.progress import progress_bar
from datamodules.readers import Document
from datamodules.rows import CHUNK, Columns, EncodedRows, Lists, RowWriter, stored_columns
from datamodules.threads import in_threads
from datamodules.tokens import Cut, Learned, LearnedFeatures, Numbers, Pretrained, Reading, Tokens
from datamodules.vocab import Vocabulary, load_pretrained

VERSION = 2  # raise it when what is written changes
SPLITS = ("train", "val", "test")
LONGEST_NAME = 80  # characters of a corpus's name in that of its folder
CHUNK_CHARACTERS = 1 << 23  # long documents are taken fewer at a time, so that memory does not grow with them
Chunk = list[tuple[str, Document]]  # documents with their splits


class Source(Protocol):
    """Documents of one split, readable more than once."""

    size: int  # what the increments of `progress` add up to

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]: ...

    def fingerprint(self) -> str: ...

    def report(self) -> list[str]: ...


@dataclass(frozen=True)
class Corpus:
    """Named splits. Without `val`, part of `train` is split off."""

    name: str
    sources: dict[str, Source]
    is_sample: bool = False
    has_features: bool = False  # texts are `name:value name:value`, as in sparse files


@dataclass(frozen=True)
class Settings:
    """What shapes the cached rows, and so belongs to their key."""

    tokenizer: str = "word"
    max_length: int = 500
    max_words: int = 500_000
    val_fraction: float = 0.1
    limit_train: int | None = None
    seed: int = 0


@dataclass
class Prepared:
    """A cache folder: encoded rows of each split, the vocabulary, and the facts of a label space."""

    folder: Path
    vocabulary: Vocabulary
    space: LabelSpace
    report: list[str] = field(default_factory=list)  # what a person should know of the corpus

    def rows(self, split: str) -> EncodedRows:
        return EncodedRows(self.folder / f"{split}.arrow", self.space.pad_id)


def prepare(corpus: Corpus, settings: Settings, cache: Path) -> Prepared:
    """Take the corpus from the cache, or put it there; safe for any number of processes at once."""
    pretrained = None
    if settings.tokenizer != "word":
        if corpus.has_features:
            raise UserError(
                f"{corpus.name} has features and no texts, which the tokenizer {settings.tokenizer} cannot read: "
                "choose a backbone without one, such as --model.backbone=Bow, and leave --data.tokenizer out"
            )
        pretrained = load_pretrained(settings.tokenizer, settings.max_length)
    name = re.sub(r"[^\w.-]+", "_", corpus.name)[:LONGEST_NAME]  # anything may be in one that a person has given
    folder = cache / f"{name}-{_key(corpus, settings, pretrained)}"
    with cache_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _write(folder, corpus, settings, pretrained)
    facts = json.loads((folder / "facts.json").read_text("utf8"))
    vocabulary = Vocabulary.from_text((folder / "tokenizer.json").read_text("utf8"), settings.max_length)
    return Prepared(folder, vocabulary, LabelSpace(**facts["space"]), facts["report"])


@contextmanager
def cache_errors(cache: Path) -> Iterator[None]:
    """A full or forbidden disk in one line."""
    try:
        yield
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)
        raise UserError(f"cannot write the cache {cache}: {what}; choose another with --data.cache_dir") from error


def _key(corpus: Corpus, settings: Settings, pretrained: Vocabulary | None) -> str:
    parts = [VERSION, asdict(settings), {name: source.fingerprint() for name, source in corpus.sources.items()}]
    if pretrained is not None:
        parts.append(hashlib.blake2b(pretrained.text.encode()).hexdigest())
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _write(folder: Path, corpus: Corpus, settings: Settings, pretrained: Vocabulary | None) -> None:
    """Build in a folder aside and rename it: under the final name there is all or nothing."""
    for left in folder.parent.glob(f".{folder.name}.*"):  # by a process that was killed; we hold its lock
        shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir()
    try:
        _Preparation(corpus, settings, pretrained, aside).run()
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Preparation:
    """One reading, in which tokens and labels get numbers as they come; then all get their final ones."""

    def __init__(self, corpus: Corpus, settings: Settings, pretrained: Vocabulary | None, folder: Path) -> None:
        self.corpus, self.settings, self.folder = corpus, settings, folder
        learned = LearnedFeatures if corpus.has_features else Learned
        self.reading: Reading = learned(settings.max_words, settings.max_length)
        if pretrained is not None:
            self.reading = Pretrained(pretrained)
        self.splits_train = "val" not in corpus.sources
        self.train_limit = 2**64 - 1  # largest hash of a training document that is kept
        self.facts, self.labels = Counter[str](), Numbers()
        self.counts, self.reference = Counter[str](), Counter[str]()  # of labels
        self.seen_ids = {split: array("Q") for split in SPLITS}  # hashes: 8 bytes for each document

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
        vocabulary = self.reading.vocabulary()
        space = self._space(vocabulary)
        self._renumber(first, space)
        shutil.rmtree(first)
        report = self._report(space) + [line for s in self.corpus.sources.values() for line in s.report()]
        (self.folder / "tokenizer.json").write_text(vocabulary.text, "utf8")
        (self.folder / "facts.json").write_text(json.dumps({"space": asdict(space), "report": report}), "utf8")

    def _read(self, folder: Path) -> None:
        """Every document goes to the file of its split."""
        with self._writers(folder) as writers:
            for source in self.corpus.sources:
                for chunk, cut in in_threads(self._cut, self._chunks(source)):
                    self._write(chunk, self.reading.number(cut), writers)
                if source == "train":
                    self._require_training()

    @contextmanager
    def _writers(self, folder: Path) -> Iterator[dict[str, RowWriter]]:
        with ExitStack() as stack:
            files = {split: RowWriter(folder / f"{split}.arrow", self.reading.has_values) for split in SPLITS}
            yield {split: stack.enter_context(file) for split, file in files.items()}

    def _chunks(self, source: str) -> Iterator[Chunk]:
        """Documents that are not left out, some at a time."""
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

    def _cut(self, chunk: Chunk) -> Cut:
        counts = np.array([split == "train" for split, _ in chunk])
        return self.reading.cut([document.text for _, document in chunk], counts)

    def _write(self, chunk: Chunk, tokens: Tokens, writers: dict[str, RowWriter]) -> None:
        labels = [self.labels.of(document.labels) for _, document in chunk]
        of_labels = Lists.of_sizes([len(row) for row in labels], np.concatenate(labels))
        ids = pa.array([document.id for _, document in chunk], pa.string())
        rows = Columns(ids, tokens.ids, of_labels, tokens.values).batch()
        splits = np.array([split for split, _ in chunk])
        for split in dict.fromkeys(splits.tolist()):
            writers[split].write_batch(rows.filter(pa.array(splits == split)))

    def _renumber(self, first: Path, space: LabelSpace) -> None:
        """From the numbers of the reading to those of the vocabulary and the label space."""
        finals = np.zeros(len(self.labels), dtype=np.int32)
        finals[self.labels.of(space.names + space.unseen)] = np.arange(space.num_all)
        with self._writers(self.folder) as writers:
            for split, writer in writers.items():
                for rows in stored_columns(first / f"{split}.arrow"):
                    tokens = self.reading.final(Tokens(rows.tokens, rows.values))
                    labels = Lists(rows.labels.offsets, finals[rows.labels.values]).sets()
                    writer.write_batch(Columns(rows.ids, tokens.ids, labels, tokens.values).batch())

    def _documents(self, source: str) -> Iterator[tuple[str, Document]]:
        """Each document with the split it belongs to; "" means that it is left out."""
        kept = 0
        for number, document in enumerate(self.corpus.sources[source].read(self.advance), 1):
            split = self._split_of(source, document, document.id or f"row-{number}")
            if split == "train" == source:
                kept += 1
                split = "train" if kept <= (self.settings.limit_train or kept) else ""  # ids may repeat
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
        text = f"{purpose} {self.settings.seed} {key}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())

    def _find_limit(self) -> None:
        """`limit_train` documents are those with the smallest hashes: the same ones wherever they stand."""
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
            advice = "no document of the training files has a label: see --data.label_column"
            if self.facts["reference"]:
                advice = "every labelled document was split off for validation: lower --data.val_fraction"
            raise UserError(f"{self.corpus.name}: {advice}")

    def _space(self, vocabulary: Vocabulary) -> LabelSpace:
        names = sorted(self.counts, key=lambda name: (-self.counts[name], name))
        unseen = sorted(self.reference.keys() - self.counts.keys())
        unseen += [name for name in self.labels if name not in self.reference]  # as they came
        return LabelSpace(
            names=names,
            counts=[self.counts[name] for name in names],
            num_documents=self.facts["train"],
            vocab_size=vocabulary.size,
            pad_id=vocabulary.pad_id,
            unseen=unseen,
            reference_counts=[self.reference[name] for name in names + unseen],
            reference_documents=self.facts["reference"],
        )

    def _report(self, space: LabelSpace) -> list[str]:
        """Lines for a person; nothing that would change results stays unsaid."""
        lines = []
        if self.facts["unlabelled"]:
            lines.append(f"{self.facts['unlabelled']:,} training documents without labels were left out")
        if self.facts["empty"]:
            what = "features" if self.corpus.has_features else "text"
            lines.append(f"{self.facts['empty']:,} documents have no {what}")
        if space.unseen:
            lines.append(f"{len(space.unseen):,} labels occur in no training document: each counts as a miss")
        seen = {split: np.unique(np.frombuffer(ids, dtype=np.uint64)) for split, ids in self.seen_ids.items()}
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            both = np.intersect1d(seen[one], seen[other], assume_unique=True)
            if len(both):
                lines.append(f"{len(both):,} ids occur both in {one} and in {other}")
        return lines
