"""What a corpus is made of, counted in one reading of each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from datamodules.prepare import SPLITS, Corpus, Prepared
from datamodules.progress import progress_bar
from datamodules.published import Published

FEW, MEDIUM = 20, 100  # training documents of a label, as in `LabelSpace.frequency_class`


@dataclass
class Statistics:
    """Counts of a corpus. Means are over all training documents, also those without labels."""

    documents: dict[str, int] = field(default_factory=dict)  # of each split
    labels: int = 0  # in any split
    labels_in_training: int = 0
    labels_per_document: float = 0.0
    most_labels: int = 0  # of a training document
    documents_per_label: float = 0.0  # of a label that training has
    words_per_document: float = 0.0
    few: int = 0  # labels with up to 20 training documents
    medium: int = 0  # with 21 to 100
    many: int = 0  # with more
    single: int = 0  # with one
    unlabelled: int = 0  # training documents without a label
    has_features: bool = False  # then the words are features

    def lines(self) -> list[tuple[str, str]]:
        """What each number is, and the number, for a person."""
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
    """Read each split once; memory holds no more than a counter for each label."""
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
    """What is known of a prepared corpus without reading it again: all but its words and what was left out of it."""
    space, found = prepared.space, Statistics()
    found.documents = {split: len(prepared.rows(split)) for split in SPLITS}
    if not has_val:  # it was split off
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
    """The published row that fits best, and a line for each number of it that is not ours."""
    compared = [(row, differences(found, row)) for row in rows]
    if not compared:
        return None
    best, others = min(compared, key=lambda pair: sum(away for away, _ in pair[1]))
    return best, [line for _, line in others]


def differences(found: Statistics, row: Published) -> list[tuple[float, str]]:
    """How far each number is from ours, as a share of the published one, and the line that says so."""
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
        (abs(here - said) / max(abs(said), 1), f"{row.where} says {said:,} {what}; here are {shown(here, said)}")
        for what, (said, here) in pairs.items()
        if said is not None and not agrees(here, said)
    ]


def agrees(here: float, said: float) -> bool:
    """Equal, or the same when written with as many decimals."""
    return shown(here, said) == f"{said:,}"


def shown(value: float, like: float) -> str:
    """Written with as many decimals as another number."""
    return f"{value:,.{len(str(like).partition('.')[2])}f}"
