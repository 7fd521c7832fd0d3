"""Synthetic corpus that needs no download: EU acts about concepts of an invented thesaurus, with a long tail.

A concept combines a topic, a region and an instrument ("fishery quota in the Baltic") and has words of its own.
Frequent and rare concepts share topics, regions and instruments, so knowledge of head labels can transfer to the tail.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.prepare.corpus import SPLITS, Corpus, Source
from datamodules.prepare.readers import Document
from zoo.core.errors import MAX_SEED, WIDEST, check_low, check_range

VERSION = 1  # part of cache keys; increase it with every change of the texts or the labels

Ints = NDArray[np.int64]
HEAD_SHARE = 0.25  # share of the training documents with the most frequent label
RELATED = 0.6  # share of a document's further labels that have the topic of its first label
MIN_MEAN_COUNT = 1.5  # minimum mean of training documents per label; documents get more labels to reach it
MAX_LABELS_PER_DOCUMENT = 32  # maximum mean
PASSING_SHARE = 0.25  # share of sentences about a concept that is not a label of the document
FORMAL_SHARE = 0.15  # share of sentences without a concept


def _lexicon(entries: str) -> list[tuple[str, ...]]:
    """Parse `name: word, word; name: word, word`; the name is the first word of its entry."""
    return [tuple(re.split(r"[:,]\s+", entry.strip())) for entry in entries.split(";")]


TOPICS = _lexicon("""
fishery: vessel, trawler, catch, herring, net; dairy: milk, butter, cheese, cream, herd;
cereal: wheat, barley, maize, grain, silo; sugar: beet, refinery, molasses, sucrose, syrup;
wine: vineyard, grape, vintage, cellar, must; forestry: timber, sawmill, seedling, pine, logging;
poultry: hen, egg, hatchery, broiler, feather; textile: cotton, yarn, fabric, weaving, garment;
steel: furnace, ingot, rolling, coil, scrap; chemical: solvent, reagent, acid, polymer, toxicity;
energy: electricity, turbine, grid, gas, pipeline; railway: engine, track, wagon, signalling, gauge;
aviation: aircraft, airport, pilot, runway, carrier; shipping: port, cargo, tanker, crew, hull;
banking: credit, deposit, loan, lender, branch; insurance: premium, policy, broker, actuary, claim;
telecom: spectrum, network, roaming, handset, antenna; pharmacy: medicine, dosage, vaccine, patient, trial;
waste: landfill, recycling, sludge, compost, residue; migration: asylum, visa, refugee, border, passport""")
REGIONS = _lexicon("""
the Baltic: Tallinn, Riga; the Canaries: Tenerife, Arrecife; the Carpathians: Brasov, Presov; Benelux: Antwerp, Utrecht;
the Ardennes: Namur, Bastogne; Catalonia: Barcelona, Girona; the Balkans: Skopje, Tirana; the Adriatic: Rijeka, Bari;
the Aegean: Piraeus, Izmir; the Alps: Innsbruck, Aosta; Lapland: Rovaniemi, Kiruna; the Pyrenees: Andorra, Pau;
Silesia: Katowice, Ostrava; Madeira: Funchal, Machico; the Rhine: Cologne, Basel; the Azores: Horta, Faial;
Corsica: Ajaccio, Bastia; Cyprus: Nicosia, Larnaca; the Danube: Vienna, Ruse; Sicily: Palermo, Catania;
Brittany: Brest, Rennes; Ireland: Dublin, Cork; Malta: Valletta, Gozo; Galicia: Vigo, Lugo""")
INSTRUMENTS = _lexicon("""
quota: ceiling, allocation; subsidy: aid, grant; levy: charge, surcharge; licence: permit, holder;
tariff: duty, customs; inspection: inspector, visit; labelling: label, marking; statistics: survey, census;
tender: bid, award; ban: prohibition, embargo; refund: repayment, export; standard: specification, conformity;
training: course, apprentice; research: project, study; register: entry, registry; price: threshold, intervention""")
GENERAL = _lexicon("""measure, provision, procedure, opinion, report, requirement, condition, obligation, interest,
principle, objective, derogation, amendment, annex, notification, application, arrangement, safeguard""")[0]

ACTS = ("Regulation", "Directive", "Decision")
TITLE = "on the {instrument} for {topic} in {region} and on {own}"
ABOUT = (
    "the {general} concerning {topic} in {region} should be adapted in the light of the {general} of the Commission",
    "the {instrument} laid down for {topic} and {topic} has proved necessary to attain the {general} of the Treaty",
    "Member States shall submit to the Commission each year their {general} on {own} and on the use of {topic}",
    "the {general} referred to in the first paragraph shall apply to {own} where the {instrument} so requires",
    "the competent authorities of {region} shall ensure that every {general} on {own} is made public without delay",
    "it is appropriate to extend the {general} to {topic} of the kind known as {own} until the end of the year",
    "any {instrument} granted before the entry into force of this act shall remain valid in {region}",
)
IN_PASSING = (
    "this {general} is without prejudice to the {instrument} which other acts provide for {topic}",
    "the {general} shall not affect {topic} originating in {region} that is governed by other acts",
    "similar rules on {topic} and on the {instrument} have been considered and the {general} has been put off",
)
FORMAL = (
    "the {general} provided for in this act is in accordance with the {general} of the Management Committee",
    "this act shall enter into force on the third day following its publication in the Official Journal",
    "the {general} shall be binding in its entirety and directly applicable in all Member States",
)
WORDS_PER_SENTENCE = 19  # on average, including "Whereas" or "Article 1"
WORDS_AROUND = 18  # title and enacting formula
PAIRS = len(REGIONS) * len(INSTRUMENTS)
SYLLABLES = [consonant + vowel for consonant in "bcdfgklmnprstvxz" for vowel in "aeiou"]
COINABLE = len(SYLLABLES) ** 4


def _coin(number: int) -> str:
    """Invent a pronounceable word, a different one for every number below `COINABLE`."""
    shuffled = (number + 1) * 15_485_863 % COINABLE  # multiplying by a prime is a bijection; neighbours look different
    return "".join(SYLLABLES[shuffled // len(SYLLABLES) ** k % len(SYLLABLES)] for k in range(4))


class Concept(NamedTuple):
    """Label of the synthetic corpus; each field is a name followed by related words."""

    topic: tuple[str, ...]
    region: tuple[str, ...]
    instrument: tuple[str, ...]
    own: tuple[str, ...]
    general: tuple[str, ...] = GENERAL

    @property
    def name(self) -> str:
        return f"{self.topic[0]} {self.instrument[0]} in {self.region[0]}"


def _num_topics(num_labels: int) -> int:
    """Number of topics: about 15 concepts per topic, and more once all topics of `TOPICS` are in use."""
    return max(min(len(TOPICS), math.ceil(num_labels / 15)), math.ceil(num_labels / (PAIRS // 2)))


@lru_cache(maxsize=8192)
def _concept(rank: int, num_topics: int) -> Concept:
    """Concept of a frequency rank. Ranks alternate between topics, so every topic has head and tail concepts."""
    turn, number = divmod(rank, num_topics)
    far_end = COINABLE - 6 * number  # counting down from the end avoids the concepts' own words
    topic = TOPICS[number] if number < len(TOPICS) else tuple(_coin(far_end - k) for k in range(6))
    # 149 and PAIRS are coprime, so no pair repeats within a topic.
    instrument, region = divmod((149 * turn + 31 * number) % PAIRS, len(REGIONS))
    return Concept(topic, REGIONS[region], INSTRUMENTS[instrument], own=(_coin(2 * rank), _coin(2 * rank + 1)))


def power_law_counts(num_labels: int, head: int, total: float) -> Ints:
    """Number of documents of each label, (num_labels,), from `head` down to 1, with a sum of at least `total`.

    On log-log axes this is Zipf's straight line, lowered if its sum is too large, and bent outwards if it is too small,
    as in real corpora with many labels of medium frequency.
    """
    depth = np.log(np.arange(1, num_labels + 1)) / math.log(num_labels)  # 0 for the first label, 1 for the last

    def counts(fullness: float) -> Ints:
        return np.floor(head ** (min(fullness, 1) * (1 - depth ** max(fullness, 1)))).astype(np.int64)

    low, high = 0.0, 64.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if counts(middle).sum() >= total else (middle, high)
    return counts(high)


def _spread(draws: Ints, room: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw `draws` distinct places in [0, room) for each label by stratified sampling: (label, place)."""
    label = np.repeat(np.arange(len(draws)), draws)
    stratum = np.arange(len(label)) - np.repeat(draws.cumsum() - draws, draws)
    low, high = ((stratum + side) * room[label] // draws[label] for side in (0, 1))
    return label, rng.integers(low, high)


def assign(counts: Ints, num_documents: int, num_topics: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Assign labels to documents, with exact counts and at least one label each: CSR (indptr, labels).

    Documents form a ring, ordered by topic and first label. Further occurrences of a label go to other documents of its
    topic or to other topics; both are arcs of the ring, so no document gets the same label twice.
    """
    ranks = np.arange(len(counts))
    by_topic = np.lexsort((ranks, ranks % num_topics))
    copies, topics = counts[by_topic], by_topic % num_topics
    end = copies.cumsum() * num_documents // copies.sum()  # end of the arc where the label comes first
    first = np.diff(end, prepend=0)
    topic_start = (end - first)[np.searchsorted(topics, topics, "left")]
    topic_end = end[np.searchsorted(topics, topics, "right") - 1]
    in_topic = topic_end - topic_start
    further, elsewhere = copies - first, num_documents - in_topic
    wanted = np.floor(RELATED * further + rng.random(len(further))).astype(np.int64)
    related = np.clip(wanted, np.maximum(further - elsewhere, 0), in_topic - first)

    near, near_place = _spread(related, in_topic - first, rng)
    far, far_place = _spread(further - related, elsewhere, rng)
    places = (
        np.arange(num_documents),
        topic_start[near] + (end[near] - topic_start[near] + near_place) % in_topic[near],
        (topic_end[far] + far_place) % num_documents,
    )
    labels = by_topic[np.concatenate((np.repeat(ranks, first), near, far))]
    documents = rng.permutation(num_documents)[np.concatenate(places)]
    indptr = np.bincount(documents + 1, minlength=num_documents + 1).cumsum()
    return indptr, labels[np.lexsort((labels, documents))]


def _fill(template: str, subject: Concept, rng: Random) -> str:
    """Fill each slot of the template with a random word of the subject."""
    return re.sub(r"{(\w+)}", lambda slot: rng.choice(getattr(subject, slot[1])), template)


@dataclass(frozen=True)
class SampleCorpus:
    """Synthetic corpus with a long tail: every label has a training document, and the rarest have exactly one.

    Documents are generated lazily; only their labels are held in memory, about 100 bytes per document.
    """

    num_documents: int = 3000
    num_labels: int = 300
    words_per_document: int = 250  # on average
    labels_per_document: float = 4.0  # on average; more if there are many labels for few documents
    seed: int = 0

    def __post_init__(self) -> None:
        check_low(3, num_documents=self.num_documents)  # one for each split
        check_low(1, num_labels=self.num_labels, labels_per_document=self.labels_per_document)
        check_range(1, WIDEST, words_per_document=self.words_per_document)
        check_range(0, MAX_SEED, seed=self.seed)
        if self.num_labels < 2 * self.labels_per_document:
            raise ValueError(f"num_labels={self.num_labels} is too low: use at least {2 * self.labels_per_document:g}")
        if self.num_labels * MIN_MEAN_COUNT > MAX_LABELS_PER_DOCUMENT * len(self.numbers("train")):
            raise ValueError(f"{self.num_documents} documents are too few for {self.num_labels} labels: use more")

    def documents(self, split: str) -> Iterator[Document]:
        """Generate the documents of "train", "val" or "test"."""
        indptr, labels = self.plan(split)
        spans = zip(self.numbers(split), indptr[:-1], indptr[1:], strict=True)
        return (self._write(number, labels[start:end].tolist()) for number, start, end in spans)

    def fingerprint(self) -> str:
        """Everything that the documents depend on, for the cache key."""
        return f"{type(self).__name__} {VERSION} {asdict(self)}"

    def numbers(self, split: str) -> range:
        """Document numbers of a split: 70 % train, 10 % val, 20 % test."""
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}: choose from {SPLITS}")
        test = self.num_documents - max(1, self.num_documents // 5)
        val = test - max(1, self.num_documents // 10)
        return {"train": range(val), "val": range(val, test), "test": range(test, self.num_documents)}[split]

    def plan(self, split: str) -> tuple[Ints, Ints]:
        """Label ranks of the documents of a split: CSR (indptr, labels)."""
        numbers = self.numbers(split)
        rng = np.random.default_rng((self.seed, numbers.start))
        return assign(self._counts(split), len(numbers), _num_topics(self.num_labels), rng)

    def concept(self, rank: int) -> Concept:
        """Concept of a frequency rank; 0 is the most frequent label."""
        return _concept(rank, _num_topics(self.num_labels))

    def _counts(self, split: str) -> Ints:
        """Number of documents of each label in a split, (num_labels,)."""
        train, size = len(self.numbers("train")), len(self.numbers(split))
        head = math.ceil(train * max(HEAD_SHARE, 2 * self.labels_per_document / self.num_labels))
        total = max(train * self.labels_per_document, self.num_labels * MIN_MEAN_COUNT)
        counts = power_law_counts(self.num_labels, head, total)
        if split == "train":
            return counts
        # Keep the shares of the training split, rounded so that their sum is right. If there is room, every label
        # occurs once, so that tail metrics are averages over many labels.
        shares = np.diff(counts.cumsum() * size // train, prepend=0)
        return np.maximum(shares, 1) if shares.sum() >= 2 * self.num_labels else shares

    def _write(self, number: int, ranks: list[int]) -> Document:
        rng = Random(f"{self.seed}/{number}")  # seeded with a digest of the string, the same in every process
        subjects = [self.concept(rank) for rank in ranks]
        act, serial, year = rng.choice(ACTS), rng.randrange(1, 4000), rng.randrange(1970, 2020)
        words = self.words_per_document * rng.uniform(0.5, 1.5) - WORDS_AROUND
        sentences = [self._sentence(subjects, rng) for _ in range(max(1, round(words / WORDS_PER_SENTENCE)))]
        lines = [
            f"{act} No {serial}/{year} {_fill(TITLE, subjects[-1], rng)}",  # the title names the rarest label
            *(f"Whereas {sentence};" for sentence in sentences[1::2]),
            f"HAS ADOPTED THIS {act.upper()}:",
            *(f"Article {k}\n{s[0].upper()}{s[1:]}." for k, s in enumerate(sentences[::2], start=1)),
        ]
        return Document(f"act-{number:07d}", "\n".join(lines), [subject.name for subject in subjects])

    def _sentence(self, subjects: list[Concept], rng: Random) -> str:
        kind = rng.random()
        if kind < PASSING_SHARE:
            rank = int(self.num_labels * rng.random() ** 3)  # frequent concepts are also mentioned more often
            return _fill(rng.choice(IN_PASSING), self.concept(rank), rng)
        templates = FORMAL if kind < PASSING_SHARE + FORMAL_SHARE else ABOUT
        return _fill(rng.choice(templates), rng.choice(subjects), rng)


@dataclass
class SampleSource:
    """Split of the synthetic corpus."""

    sample: SampleCorpus
    split: str
    size: int

    def read(self, progress: Callable[[int], None]) -> Iterator[Document]:
        for document in self.sample.documents(self.split):
            yield document
            progress(1)

    def fingerprint(self) -> str:
        return f"{self.sample.fingerprint()} {self.split}"

    def report(self) -> list[str]:
        return []


def sample_corpus(sample: SampleCorpus) -> Corpus:
    """Wrap the synthetic corpus as a `Corpus`."""
    sources: dict[str, Source] = {split: SampleSource(sample, split, len(sample.numbers(split))) for split in SPLITS}
    return Corpus("sample", sources, is_sample=True)
