"""Collects the evidence of a report from a trained model and its corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from datamodules.base import TextDataModule
from datamodules.batch import Batch, LabelSpace, Targets
from datamodules.prepare.vocabulary import Vocabulary
from heads import Experts, PvaeAugmentor
from heads.experts.multi_layer import bernoulli_kl
from zoo.analysis.evidence import Evidence, Example, Points
from zoo.core.metrics import MACRO_K
from zoo.core.run_folder import RunFolder

CORRELATED = 80  # labels in the correlation matrix
POINTS = 60  # real features of a label, and as many generated ones
WANTED = (10**9, 60, 15, 6)  # we show the labels whose numbers of training documents are closest to these
EXAMPLES = 4  # documents of each kind
MAX_TOKENS = 250  # of an example
EXPERT_DOCUMENTS = 500  # documents on which experts are compared
WORD_STARTS = ("Ġ", "▁")  # prefixes of tokens that start a word
BATCH_SIZE = 32


@torch.no_grad()
def collect(module: Any, data: TextDataModule, run: RunFolder, split: str = "test") -> Evidence:
    """Collect the evidence of a `ZooModule`; examples are selected by the predictions of the run."""
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
        examples=tuple(examples(module, data, run, split)),
    )


def batches(module: Any, data: TextDataModule, split: str, rows: Sequence[int]) -> Iterator[Batch]:
    documents = data.prepared.rows(split)
    for first in range(0, len(rows), BATCH_SIZE):
        yield documents[list(rows[first : first + BATCH_SIZE])].to(module.device)


def correlations(targets: Targets, space: LabelSpace) -> tuple[np.ndarray, np.ndarray]:
    """Correlation coefficients of labels, sampled logarithmically from frequent to rare."""
    ranks = np.unique(np.geomspace(1, space.num_labels, min(CORRELATED, space.num_labels)).round().astype(int) - 1)
    if len(ranks) < CORRELATED:  # the first ranks coincide
        ranks = np.union1d(ranks, np.arange(min(CORRELATED - len(ranks), space.num_labels)))
    chosen = space.by_frequency().numpy()[ranks]
    place = np.full(space.num_all, -1)
    place[chosen] = np.arange(len(chosen))
    columns = place[targets.indices.numpy()]
    kept = columns >= 0
    pairs = targets.rows.numpy()[kept], columns[kept]
    has_label = csr_array((np.ones(kept.sum()), pairs), (len(targets), len(chosen)))
    both = (has_label.T @ has_label).toarray()  # documents with both labels
    alone, size = both.diagonal(), len(targets)
    spread = np.sqrt(alone * (size - alone))  # 0 for labels of no document or of all
    found: np.ndarray = (size * both - np.outer(alone, alone)) / np.outer(spread, spread).clip(1)
    return chosen, found.astype(np.float32)


def points(module: Any, data: TextDataModule) -> Points | None:
    """Features of a frequent, a medium and two rare labels; document vectors if the head has no label features."""
    space, head, targets = module.space, module.head, data.train_targets()
    augmentor = head if isinstance(head, PvaeAugmentor) else getattr(head, "inner", None)
    counts = np.array(space.counts)
    labels = list(dict.fromkeys(int(np.abs(counts - wanted).argmin()) for wanted in WANTED if len(counts)))
    rows, draws = targets.rows.numpy(), np.random.default_rng(0)
    values: list[np.ndarray] = []
    of: list[np.ndarray] = []
    for label in labels:
        documents = rows[targets.indices.numpy() == label]
        documents = np.sort(draws.permutation(documents)[:POINTS])
        for batch in batches(module, data, "train", documents.tolist()):
            features = module(batch)
            only = Targets.from_lists([[label]] * len(batch)).to(module.device)
            mine = augmentor.pair_features(features, only) if isinstance(augmentor, PvaeAugmentor) else features.pooled
            values.append(mine.float().cpu().numpy())
            of.append(np.full(len(mine), label))
    generated = [np.zeros(len(labels), dtype=bool) for labels in of]
    if isinstance(augmentor, PvaeAugmentor) and augmentor.has_pvae:
        rare = [label for label in labels if not augmentor.is_head[label]]
        for label in rare:
            generator = torch.Generator().manual_seed(label)
            repeated = torch.full((POINTS,), label, device=module.device)
            values.append(augmentor.generate(repeated, generator).float().cpu().numpy())
            of.append(np.full(POINTS, label))
            generated.append(np.ones(POINTS, dtype=bool))
    if not values or np.ptp(np.concatenate(values), axis=0).max() == 0:  # a backbone without vectors
        return None
    return Points(np.concatenate(values), np.concatenate(of), np.concatenate(generated))


def disagreement(module: Any, data: TextDataModule, split: str) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Mean KL divergence between experts on true labels, as in Figure 2b of ME-XML."""
    head = module.head
    if not isinstance(head, Experts) or len(head.parts) < 2:
        return (), None
    size = len(data.prepared.rows(split))
    rows = np.sort(np.random.default_rng(0).permutation(size)[:EXPERT_DOCUMENTS])
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


def examples(module: Any, data: TextDataModule, run: RunFolder, split: str) -> Iterator[Example]:
    """Documents with all labels found, with a missed label, and with a wrong top label."""
    if run.predictions is None:
        return
    table = run.predictions.to_pydict()
    lengths = data.prepared.rows(split).lengths
    chosen = choose(table["row"], table["truth"], table["labels"], lengths, module.space)
    vocabulary: Vocabulary = module.vocabulary
    for kind, place in chosen:
        (batch,) = batches(module, data, split, [table["row"][place]])
        truth, found = table["truth"][place], table["labels"][place][:MACRO_K]
        shown = list(dict.fromkeys([*found, *(label for label in truth if label < module.space.num_labels)]))
        words, kept = readable(vocabulary, batch.ids[0].tolist())
        attention: dict[int, list[float]] = {}
        weights = module.head.attention_weights(module(batch), torch.tensor([shown], device=module.device))
        if weights is not None:
            attention = dict(zip(shown, weights[0][:, kept].tolist(), strict=True))
        scores = table["scores"][place][:MACRO_K]
        yield Example(str(table["id"][place]), kind, words, truth, found, scores, attention)


def choose(
    rows: Sequence[int],
    truths: Sequence[list[int]],
    founds: Sequence[list[int]],
    lengths: np.ndarray,
    space: LabelSpace,
) -> Iterator[tuple[str, int]]:
    """Kind and position of example documents; those with the rarest labels first."""
    counts = np.array([*space.counts, *(0 for _ in space.unseen)])
    taken: dict[str, list[tuple[int, int]]] = {"right": [], "missed": [], "wrong": []}
    for place, (row, truth, found) in enumerate(zip(rows, truths, founds, strict=True)):
        if not truth or len(truth) > MACRO_K or not 0 < lengths[row] <= MAX_TOKENS or not found:
            continue
        missed = set(truth) - set(found[:MACRO_K])
        kind = "wrong" if found[0] not in truth else "missed" if missed else "right"
        known = [int(counts[label]) for label in (missed or truth) if counts[label]]
        if known:  # otherwise all missed labels are unseen in training
            taken[kind].append((min(known), place))
    for kind, documents in taken.items():
        yield from ((kind, place) for _, place in sorted(documents)[:EXAMPLES])


def readable(vocabulary: Vocabulary, ids: Iterable[int]) -> tuple[list[str], list[int]]:
    """Tokens as words with leading spaces, and the positions of tokens that are text."""
    special = {*vocabulary.special_ids(), vocabulary.pad_id}
    kept = [(place, token) for place, token in enumerate(ids) if token not in special]
    tokens = [vocabulary.tokenizer.id_to_token(token) or "" for _, token in kept]
    marked = any(token.startswith(WORD_STARTS) for token in tokens)  # a token without the prefix continues a word
    words = []
    for token, (_, index) in zip(tokens, kept, strict=True):
        is_start = not token.startswith("##") and (not marked or token.startswith(WORD_STARTS))
        words.append(" " * is_start + plain_text(vocabulary, token, index))
    return words, [place for place, _ in kept]


def plain_text(vocabulary: Vocabulary, token: str, index: int) -> str:
    """Text of a token without prefixes; byte-level tokens are decoded."""
    text = token.removeprefix("##").lstrip("Ġ▁")
    return text if text.isascii() else str(vocabulary.tokenizer.decode([index])).strip() or text
