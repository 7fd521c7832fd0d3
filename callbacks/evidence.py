"""What a report shows of a model beyond its metrics, collected once and kept in the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.sparse import csr_array

from callbacks.predictions import DOCUMENTS, KEPT
from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.files import written_whole
from datamodules.vocab import Vocabulary
from heads import Experts, PvaeAugmentor
from heads.experts import bernoulli_kl

FILE = "evidence.npz"
CORRELATED = 80  # labels whose correlations are shown
POINTS = 60  # features of a label that are shown, real and generated each
WANTED = (10**9, 60, 15, 6)  # training documents of the labels whose features are shown: the nearest there are
EXAMPLES = 4  # documents of each kind
LONGEST = 250  # tokens of one that is shown
OPINIONS = 500  # documents on which experts are compared
BEGINS = ("Ġ", "▁")  # marks of a token that begins a word
STEP = 32  # documents that are read at a time


@dataclass(frozen=True)
class Points:
    """Features of some labels: those of training documents, and generated ones."""

    values: np.ndarray  # (n, width)
    labels: np.ndarray  # (n,)
    generated: np.ndarray  # (n,) bool


@dataclass(frozen=True)
class Example:
    """A test document as the model read it, with its true labels and what was found."""

    id: str
    kind: str  # "right", "missed" or "wrong"
    words: list[str]  # a token that goes on with the word before it begins without a space
    truth: list[int]
    found: list[int]  # best first
    scores: list[float]
    attention: dict[int, list[float]] = field(default_factory=dict)  # by label, one weight for each of `words`


@dataclass(frozen=True)
class Evidence:
    """None and nothing where a model has no such thing."""

    norms: np.ndarray | None = None  # (num_labels,) length of the weights of each label
    correlated: np.ndarray | None = None  # (m,) labels by falling number of training documents
    correlation: np.ndarray | None = None  # (m, m) of their training documents
    points: Points | None = None
    experts: tuple[str, ...] = ()
    divergence: np.ndarray | None = None  # (experts, experts) mean KL(row || column) on true labels
    examples: tuple[Example, ...] = ()

    def save(self, folder: Path) -> None:
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("norms", "correlated", "correlation")}
        arrays["divergence"] = self.divergence
        if self.points is not None:
            arrays |= {f"points_{name}": value for name, value in vars(self.points).items()}
        texts = {"experts": list(self.experts), "examples": [asdict(example) for example in self.examples]}
        kept = {name: value for name, value in arrays.items() if value is not None}
        with written_whole(folder / FILE) as aside:
            np.savez_compressed(aside, allow_pickle=False, texts=np.array(json.dumps(texts)), **kept)

    @classmethod
    def load(cls, folder: Path) -> Evidence | None:
        """What is kept in a run folder, or None."""
        if not (folder / FILE).is_file():
            return None
        with np.load(folder / FILE, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        texts = json.loads(str(arrays.pop("texts")))
        points = {name: arrays.pop(f"points_{name}", None) for name in ("values", "labels", "generated")}
        examples = [
            Example(**content | {"attention": {int(label): w for label, w in content["attention"].items()}})
            for content in texts["examples"]
        ]
        return cls(
            **arrays,
            points=None if points["values"] is None else Points(**points),
            experts=tuple(texts["experts"]),
            examples=tuple(examples),
        )


@torch.no_grad()
def collect(module: Any, data: TextDataModule, folder: Path, split: str = "test") -> Evidence:
    """All that this model, a `ZooModule`, has; examples are those of the run's predictions."""
    space, head = module.space, module.head
    module.eval()
    norms = head.weight_norms()
    correlated, correlation = correlations(data.train_targets(), space)
    names, divergence = disagreement(module, data, split)
    return Evidence(
        norms=None if norms is None else norms.float().cpu().numpy(),
        correlated=correlated,
        correlation=correlation,
        points=points(module, data),
        experts=names,
        divergence=divergence,
        examples=tuple(examples(module, data, folder, split)),
    )


def batches(module: Any, data: TextDataModule, split: str, rows: Sequence[int]) -> Iterator[Batch]:
    documents = data.prepared.rows(split)
    for first in range(0, len(rows), STEP):
        yield documents[list(rows[first : first + STEP])].to(module.device)


def correlations(targets: Targets, space: LabelSpace) -> tuple[np.ndarray, np.ndarray]:
    """Correlation coefficients of labels: of frequent ones closely, of rarer ones at growing distances."""
    ranks = np.unique(np.geomspace(1, space.num_labels, min(CORRELATED, space.num_labels)).round().astype(int) - 1)
    if len(ranks) < CORRELATED:  # near the most frequent several fall on one another
        ranks = np.union1d(ranks, np.arange(min(CORRELATED - len(ranks), space.num_labels)))
    chosen = space.by_frequency().numpy()[ranks]
    place = np.full(space.num_all, -1)
    place[chosen] = np.arange(len(chosen))
    columns = place[targets.indices.numpy()]
    kept = columns >= 0
    pairs = targets.rows.numpy()[kept], columns[kept]
    carried = csr_array((np.ones(kept.sum()), pairs), (len(targets), len(chosen)))
    both = (carried.T @ carried).toarray()  # documents that carry two of the labels
    alone, size = both.diagonal(), len(targets)
    spread = np.sqrt(alone * (size - alone))  # 0 for a label of no document or of all
    found: np.ndarray = (size * both - np.outer(alone, alone)) / np.outer(spread, spread).clip(1)
    return chosen, found.astype(np.float32)


def points(module: Any, data: TextDataModule) -> Points | None:
    """Features of a frequent, a medium and two rare labels; the document's vector where a label has none of its own."""
    space, head, targets = module.space, module.head, data.train_targets()
    augmentor = head if isinstance(head, PvaeAugmentor) else getattr(head, "inner", None)
    counts = np.array(space.counts)
    labels = list(dict.fromkeys(int(np.abs(counts - wanted).argmin()) for wanted in WANTED if len(counts)))
    carriers, draws = targets.rows.numpy(), np.random.default_rng(0)
    values: list[np.ndarray] = []
    of: list[np.ndarray] = []
    for label in labels:
        documents = carriers[targets.indices.numpy() == label]
        documents = np.sort(draws.permutation(documents)[:POINTS])
        for batch in batches(module, data, "train", documents.tolist()):
            features = module(batch)
            only = Targets.from_lists([[label]] * len(batch)).to(module.device)
            mine = augmentor.pair_features(features, only) if isinstance(augmentor, PvaeAugmentor) else features.pooled
            values.append(mine.float().cpu().numpy())
            of.append(np.full(len(mine), label))
    made = [np.zeros(len(part), dtype=bool) for part in of]
    if isinstance(augmentor, PvaeAugmentor) and augmentor.has_pvae:
        rare = [label for label in labels if not augmentor.is_head[label]]
        for label in rare:
            generator = torch.Generator().manual_seed(label)
            repeated = torch.full((POINTS,), label, device=module.device)
            values.append(augmentor.generate(repeated, generator).float().cpu().numpy())
            of.append(np.full(POINTS, label))
            made.append(np.ones(POINTS, dtype=bool))
    if not values or np.ptp(np.concatenate(values), axis=0).max() == 0:  # a backbone without vectors
        return None
    return Points(np.concatenate(values), np.concatenate(of), np.concatenate(made))


def disagreement(module: Any, data: TextDataModule, split: str) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Mean divergence of each expert from each other on true labels, as in ME-XML's Figure 2b."""
    head = module.head
    if not isinstance(head, Experts) or len(head.parts) < 2:
        return (), None
    size = len(data.prepared.rows(split))
    rows = np.sort(np.random.default_rng(0).permutation(size)[:OPINIONS])
    total = np.zeros((len(head.parts), len(head.parts)))
    pairs = 0
    for batch in batches(module, data, split, rows.tolist()):
        features, known = module(batch), batch.targets.below(head.num_labels)
        logits = torch.stack(
            [expert.score_pairs(expert.per_token(features), features.mask, known) for expert in head.each()]
        )
        total += bernoulli_kl(logits[:, None].double(), logits[None].double()).sum(-1).cpu().numpy()
        pairs += len(known.indices)
    return head.parts, total / max(pairs, 1)


def examples(module: Any, data: TextDataModule, folder: Path, split: str) -> Iterator[Example]:
    """Documents whose labels were all found, of which one was missed, and of which the first guess is wrong."""
    if not (folder / DOCUMENTS).is_file():
        return
    table = pq.read_table(folder / DOCUMENTS).to_pydict()
    lengths = data.prepared.rows(split).lengths
    chosen = choose(table["row"], table["truth"], table["labels"], lengths, module.space)
    vocabulary: Vocabulary = module.vocabulary
    for kind, place in chosen:
        (batch,) = batches(module, data, split, [table["row"][place]])
        truth, found = table["truth"][place], table["labels"][place][:KEPT]
        shown = list(dict.fromkeys([*found, *(label for label in truth if label < module.space.num_labels)]))
        words, kept = readable(vocabulary, batch.ids[0].tolist())
        attention: dict[int, list[float]] = {}
        weights = module.head.attention_weights(module(batch), torch.tensor([shown], device=module.device))
        if weights is not None:
            attention = dict(zip(shown, weights[0][:, kept].tolist(), strict=True))
        scores = table["scores"][place][:KEPT]
        yield Example(str(table["id"][place]), kind, words, truth, found, scores, attention)


def choose(
    rows: Sequence[int],
    truths: Sequence[list[int]],
    founds: Sequence[list[int]],
    lengths: np.ndarray,
    space: LabelSpace,
) -> Iterator[tuple[str, int]]:
    """Places of documents, with what they are examples of; those with the rarest labels first, each once."""
    counts = np.array([*space.counts, *(0 for _ in space.unseen)])
    taken: dict[str, list[tuple[int, int]]] = {"right": [], "missed": [], "wrong": []}
    for place, (row, truth, found) in enumerate(zip(rows, truths, founds, strict=True)):
        if not truth or len(truth) > KEPT or not 0 < lengths[row] <= LONGEST or not found:
            continue
        missed = set(truth) - set(found[:KEPT])
        kind = "wrong" if found[0] not in truth else "missed" if missed else "right"
        known = [int(counts[label]) for label in (missed or truth) if counts[label]]
        if known:  # otherwise all that was missed are labels that no training document has
            taken[kind].append((min(known), place))
    for kind, documents in taken.items():
        yield from ((kind, place) for _, place in sorted(documents)[:EXAMPLES])


def readable(vocabulary: Vocabulary, ids: Iterable[int]) -> tuple[list[str], list[int]]:
    """Tokens as words with the spaces between them, and the places of those that are text."""
    special = {*vocabulary.special_ids(), vocabulary.pad_id}
    kept = [(place, token) for place, token in enumerate(ids) if token not in special]
    tokens = [vocabulary.tokenizer.id_to_token(token) or "" for _, token in kept]
    marked = any(token.startswith(BEGINS) for token in tokens)  # a token without the mark goes on with a word
    words = []
    for token, (_, number) in zip(tokens, kept, strict=True):
        if token.startswith("##") or (marked and not token.startswith(BEGINS)):
            words.append(plain(vocabulary, token, number))
        else:
            words.append(" " + plain(vocabulary, token, number))
    return words, [place for place, _ in kept]


def plain(vocabulary: Vocabulary, token: str, number: int) -> str:
    """Without marks; what stands for bytes is decoded."""
    text = token.removeprefix("##").lstrip("Ġ▁")
    return text if text.isascii() else str(vocabulary.tokenizer.decode([number])).strip() or text
