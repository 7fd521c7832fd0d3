"""The built-in sample: a planned long tail, shared words, and the same text on every machine."""

import hashlib
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest

from datamodules.prepare.readers import Document
from datamodules.synthetic import SampleCorpus, power_law_counts, sample_corpus
from tests.support.errors import raises
from zoo.core.errors import UserError

SPLITS = ("train", "val", "test")
TINY = SampleCorpus(num_documents=60, num_labels=20, words_per_document=30)


@pytest.fixture(scope="module")
def default() -> dict[str, list[Document]]:
    return {split: list(SampleCorpus().documents(split)) for split in SPLITS}


def count_labels(documents: list[Document]) -> Counter[str]:
    return Counter(label for document in documents for label in document.labels)


def digest(corpus: SampleCorpus) -> str:
    return hashlib.sha256(repr([list(corpus.documents(split)) for split in SPLITS]).encode()).hexdigest()


def test_the_corpus_follows_the_seed() -> None:
    assert digest(SampleCorpus(60, 20, 30)) == digest(TINY) != digest(SampleCorpus(60, 20, 30, seed=1))
    assert digest(TINY).startswith("b2021559327a42bc")  # the same in every process and on every machine


def test_the_corpus_has_a_long_tail(default: dict[str, list[Document]]) -> None:
    train, test = count_labels(default["train"]), count_labels(default["test"])
    tail = {label for label, count in train.items() if count <= 5}
    assert len(train) == 300
    assert len(tail) >= 100
    assert sum(count == 1 for count in train.values()) >= 30
    assert len(tail & test.keys()) >= 0.8 * len(tail)


def test_label_frequencies_follow_the_plan(default: dict[str, list[Document]]) -> None:
    corpus, train = SampleCorpus(), count_labels(default["train"])
    by_rank = [train[corpus.concept(rank).name] for rank in range(corpus.num_labels)]
    assert by_rank == sorted(by_rank, reverse=True)
    assert by_rank == power_law_counts(300, head=525, total=4 * 2100).tolist()
    assert by_rank[0] > 100 * by_rank[-1]


def test_power_law_is_a_line_in_log_scale() -> None:
    counts = power_law_counts(100_000, head=50_000, total=300_000)
    slopes = np.diff(np.log(counts[[0, 9, 99, 999]])) / np.log(10)
    assert counts.sum() == pytest.approx(300_000, rel=0.01)
    assert np.ptp(slopes) < 0.05


def test_documents_have_distinct_labels_and_the_given_size(default: dict[str, list[Document]]) -> None:
    documents = [document for split in SPLITS for document in default[split]]
    assert all(1 <= len(document.labels) == len(set(document.labels)) for document in documents)
    assert np.mean([len(document.labels) for document in documents]) == pytest.approx(4, rel=0.1)
    assert np.mean([len(document.text.split()) for document in documents]) == pytest.approx(250, rel=0.05)


def test_rare_labels_share_the_words_of_their_topic(default: dict[str, list[Document]]) -> None:
    corpus = SampleCorpus()
    rare = {corpus.concept(rank).name: corpus.concept(rank) for rank in range(200, 300)}
    head_topics = {corpus.concept(rank).topic for rank in range(20)}
    assert all(concept.topic in head_topics for concept in rare.values())
    pairs = [(set(d.text.split()), rare[label]) for d in default["train"] for label in d.labels if label in rare]
    share = np.mean([any(word in words for word in concept.topic) for words, concept in pairs])
    assert share > 0.9


def test_labels_of_a_document_are_related(default: dict[str, list[Document]]) -> None:
    rng = np.random.default_rng(0)
    topics = [[label.split()[0] for label in document.labels] for document in default["train"]]
    every = np.array([topic for row in topics for topic in row])
    together = np.mean([row[0] == row[1] for row in topics if len(row) > 1])
    by_chance = np.mean(rng.permutation(every) == every)
    assert together > 2 * by_chance


@pytest.mark.parametrize("num_labels", [20, 20_000])
def test_names_and_own_words_are_unique(num_labels: int) -> None:
    corpus = SampleCorpus(num_documents=20_000, num_labels=num_labels)
    concepts = [corpus.concept(rank) for rank in range(num_labels)]
    own = [word for concept in concepts for word in concept.own]
    assert len({concept.name for concept in concepts}) == num_labels
    assert len(set(own)) == len(own)
    assert not set(own) & {word for concept in concepts for word in concept.topic}


@pytest.mark.parametrize(
    ("num_documents", "num_labels", "labels_per_document"),
    [(3, 8, 4), (3, 2, 1), (100, 2, 1), (40, 500, 4), (50, 100, 50)],
)
def test_small_sizes(num_documents: int, num_labels: int, labels_per_document: float) -> None:
    corpus = SampleCorpus(num_documents, num_labels, 30, labels_per_document)
    documents = {split: list(corpus.documents(split)) for split in SPLITS}
    assert sum(map(len, documents.values())) == num_documents
    assert len(count_labels(documents["train"])) == num_labels
    for document in chain.from_iterable(documents.values()):
        assert 1 <= len(document.labels) == len(set(document.labels))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"num_documents": 1}, "documents"),
        ({"num_labels": 1}, "num_labels"),
        ({"words_per_document": 0}, "word"),
        ({"labels_per_document": 0}, "label"),
        ({"num_documents": 30, "num_labels": 100_000}, 100_000),
    ],
)
def test_invalid_sizes_are_rejected(settings: dict[str, int], part: object) -> None:
    with raises((ValueError, UserError), part):
        SampleCorpus(**settings)


def test_unknown_splits_are_rejected() -> None:
    with raises(ValueError, "'dev'"):
        TINY.documents("dev")


def test_extreme_label_space() -> None:
    corpus = SampleCorpus(num_documents=100_000, num_labels=100_000)
    indptr, labels = corpus.plan("train")
    counts = np.bincount(labels, minlength=corpus.num_labels)
    pairs = np.repeat(np.arange(70_000), np.diff(indptr)) * corpus.num_labels + labels
    assert counts.min() == 1
    assert (np.diff(counts) <= 0).all()
    assert np.diff(indptr).min() >= 1
    assert len(np.unique(pairs)) == len(pairs)
    assert all(document.labels for document in islice(corpus.documents("test"), 20))


def test_fingerprint_depends_on_every_parameter() -> None:
    changes = {"num_documents": 3001, "num_labels": 301, "words_per_document": 251, "labels_per_document": 5, "seed": 1}
    variants = [SampleCorpus(), *(SampleCorpus(**{name: value}) for name, value in changes.items())]
    assert len({corpus.fingerprint() for corpus in variants}) == len(variants)
    assert SampleCorpus().fingerprint() == variants[0].fingerprint()


def test_corpus_of_the_datamodule() -> None:
    corpus = sample_corpus(TINY)
    assert corpus.is_sample
    for split, source in corpus.sources.items():
        steps: list[int] = []
        assert list(source.read(steps.append)) == list(TINY.documents(split))
        assert sum(steps) == source.size
