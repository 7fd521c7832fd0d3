"""Statistics of a corpus, and their comparison with published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from datamodules.prepare.corpus import SPLITS, Corpus
from datamodules.prepare.preparation import Prepared
from zoo.core.console import progress_bar
from zoo.core.metrics import FEW, MEDIUM


@dataclass(frozen=True)
class Published:
    """Corpus statistics of a paper; fields are None if the paper does not give them."""

    where: str  # paper and table
    train: int  # documents
    test: int
    labels: int
    labels_per_document: float | None = None
    documents_per_label: float | None = None  # training documents
    classes: tuple[int, int, int] | None = None  # labels with up to 20, up to 100 and more training documents
    val: int | None = None  # documents


@dataclass
class Statistics:
    """Statistics of a corpus. Means are over all training documents, including those without labels."""

    documents: dict[str, int] = field(default_factory=dict)  # by split
    labels: int = 0  # in any split
    labels_in_training: int = 0
    labels_per_document: float = 0.0
    most_labels: int = 0  # of a training document
    documents_per_label: float = 0.0  # over labels with training documents
    words_per_document: float = 0.0
    few: int = 0  # labels with up to 20 training documents
    medium: int = 0  # labels with 21 to 100
    many: int = 0  # labels with more
    single: int = 0  # labels with one
    unlabelled: int = 0  # training documents without labels
    has_features: bool = False  # `words_per_document` counts features

    def lines(self) -> list[tuple[str, str]]:
        """Names and formatted values, for display."""
        words = "features" if self.has_features else "words"
        return [
            *((f"{split} documents", f"{count:,}") for split, count in self.documents.items()),
            ("labels", f"{self.labels:,}"),
            ("labels in training", f"{self.labels_in_training:,}"),
            ("labels per document", f"{self.labels_per_document:.2f}"),
            ("most labels of a document", f"{self.most_labels:,}"),
            ("training documents per label", f"{self.documents_per_label:.2f}"),
            (f"{words} per document", f"{self.words_per_document:.1f}"),
            (f"labels with up to {FEW} training documents", f"{self.few:,}"),
            (f"labels with {FEW + 1} to {MEDIUM}", f"{self.medium:,}"),
            (f"labels with over {MEDIUM}", f"{self.many:,}"),
            ("labels with one", f"{self.single:,}"),
            ("training documents without labels", f"{self.unlabelled:,}"),
        ]


def count_corpus(corpus: Corpus) -> Statistics:
    """Compute statistics in one pass; memory grows with the number of labels only."""
    found = Statistics(has_features=corpus.has_features)
    counts, elsewhere = Counter[str](), set[str]()
    words = 0
    with progress_bar(f"Counting {corpus.name}") as bar:
        advance = bar(sum(source.size for source in corpus.sources.values()))
        for split, source in corpus.sources.items():
            found.documents[split] = 0
            for document in source.read(advance):
                found.documents[split] += 1
                if split != "train":
                    elsewhere.update(document.labels)
                    continue
                counts.update(document.labels)
                words += len(document.text.split())
                found.most_labels = max(found.most_labels, len(document.labels))
                found.unlabelled += not document.labels
    found.labels, found.labels_in_training = len(counts.keys() | elsewhere), len(counts)
    found.labels_per_document = mean(counts.total(), found.documents["train"])
    found.documents_per_label = mean(counts.total(), len(counts))
    found.words_per_document = mean(words, found.documents["train"])
    count_frequencies(found, counts.values())
    return found


def of_prepared(prepared: Prepared, has_val: bool) -> Statistics:
    """Statistics of a prepared corpus, without words and without documents that were left out."""
    space, found = prepared.space, Statistics()
    found.documents = {split: len(prepared.rows(split)) for split in SPLITS}
    if not has_val:  # `val` was split off from `train`
        found.documents["train"] += found.documents.pop("val")
    counts = [count for count in space.reference_counts if count]
    found.labels, found.labels_in_training = space.num_all, len(counts)
    found.labels_per_document = mean(sum(counts), space.reference_documents)
    found.documents_per_label = mean(sum(counts), len(counts))
    count_frequencies(found, counts)
    return found


def count_frequencies(found: Statistics, counts: Iterable[int]) -> None:
    for count in counts:
        found.single += count == 1
        found.few += count <= FEW
        found.medium += FEW < count <= MEDIUM
        found.many += count > MEDIUM


def mean(total: float, number: int) -> float:
    return total / number if number else 0.0


def compare(found: Statistics, rows: Iterable[Published]) -> tuple[Published, list[str]] | None:
    """Find the closest published statistics, and describe each difference in a line."""
    compared = [(row, differences(found, row)) for row in rows]
    if not compared:
        return None
    best, others = min(compared, key=lambda pair: sum(away for away, _ in pair[1]))
    return best, [line for _, line in others]


def differences(found: Statistics, row: Published) -> list[tuple[float, str]]:
    """Relative difference and description of each number that differs from the published one."""
    few, medium, many = row.classes or (None, None, None)
    pairs = {
        "training documents": (row.train, found.documents["train"]),
        "validation documents": (row.val, found.documents.get("val", 0)),
        "test documents": (row.test, found.documents.get("test", 0)),
        "labels": (row.labels, found.labels_in_training if row.labels == found.labels_in_training else found.labels),
        "labels per document": (row.labels_per_document, found.labels_per_document),
        "training documents per label": (row.documents_per_label, found.documents_per_label),
        f"labels with up to {FEW} training documents": (few, found.few),
        f"labels with {FEW + 1} to {MEDIUM} training documents": (medium, found.medium),
        f"labels with over {MEDIUM} training documents": (many, found.many),
    }
    return [
        (abs(here - said) / max(abs(said), 1), f"{row.where} has {said:,} {what}, this corpus {shown(here, said)}")
        for what, (said, here) in pairs.items()
        if said is not None and not agrees(here, said)
    ]


def agrees(here: float, said: float) -> bool:
    """Whether two numbers are equal when rounded like the published one."""
    return shown(here, said) == f"{said:,}"


def shown(value: float, like: float) -> str:
    """Format a value with as many decimals as another number."""
    return f"{value:,.{len(str(like).partition('.')[2])}f}"
