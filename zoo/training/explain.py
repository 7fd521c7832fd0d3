"""Which words of a document speak for its labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import by_word
from datamodules.batch import Batch
from heads.base import Neighbors
from zoo.training.arguments import well_formed
from zoo.training.ranking_model import RankingModel
from zoo.training.spans import Explanation, Place, Similar, original_places, spans, token_places

if TYPE_CHECKING:
    from zoo.training.tagger import Tagger

AT_ONCE = 8  # documents of a backward pass
DEPTH = 100  # labels among which the explained ones are
GROUPS = 32  # of neighbouring words, which are left out together

Explanations = list[list[Explanation]]  # of each label of each text
NOTHING = Explanation()

Lookups = list[tuple[Tensor, Tensor]]  # ids and vectors of each use of an embedding


def explanations(tagger: Tagger, texts: list[str], labels: Tensor) -> Explanations:
    """What speaks for `labels` (texts, n), the best ones of each text; nothing for label -1."""
    found: Explanations = [[NOTHING] * labels.shape[1] for _ in texts]
    wanted, depth = labels.to(tagger.module.device), min(max(DEPTH, labels.shape[1]), len(tagger.names))
    depth = tagger.calibration.depth(depth) if tagger.calibration else depth
    for rows, batch in tagger.batches(texts, [[] for _ in texts]):
        weights = contributions(tagger.module, batch, wanted[rows], depth)
        near = neighbors(tagger.module, batch, wanted[rows])
        for i, row in enumerate(rows):
            text = well_formed(texts[row])
            places = token_places(tagger.vocabulary, text)
            if weights is None:
                each = left_out(tagger, text, places, labels[row], depth)
            else:
                each = weights[i, :, : len(places)].cpu().numpy()
            places = in_original(places, texts[row])
            found[row] = [
                Explanation(spans(places, own), similar(near, i, place)) if label >= 0 else NOTHING
                for place, (own, label) in enumerate(zip(each, labels[row].tolist(), strict=True))
            ]
    return found


@torch.no_grad()
def neighbors(module: RankingModel, batch: Batch, labels: Tensor) -> Neighbors | None:
    """Similar training documents, if the head has some in store."""
    return module.head.neighbors(module(batch), labels)


def similar(near: Neighbors | None, document: int, place: int) -> tuple[Similar, ...]:
    return () if near is None else tuple(Similar(*found) for found in near.of(document, place))


def in_original(places: list[Place], text: str) -> list[Place]:
    """Places in a text from those in `well_formed(text)`."""
    positions = original_places(text)
    return places if positions is None else [(int(positions[a]), int(positions[b])) for a, b in places]


def left_out(tagger: Tagger, text: str, places: list[Place], labels: Tensor, depth: int) -> np.ndarray:
    """What the scores of labels lose without groups of neighbouring words, (labels, places): for any model."""
    distinct = sorted({place for place in places if place[1] > place[0]})
    groups = [
        group for group in np.array_split(np.arange(len(distinct)), min(GROUPS, len(distinct) or 1)) if len(group)
    ]
    variants = [text]
    for group in groups:
        start, end = distinct[group[0]][0], distinct[group[-1]][1]
        variants.append(text[:start] + " " * (end - start) + text[end:])
    ranking, _ = tagger.rank_texts(variants, depth)
    scores = ((ranking.labels.unsqueeze(1) == labels.unsqueeze(1)) * ranking.scores.unsqueeze(1)).sum(2)
    loss = (scores[0] - scores[1:]).T.numpy()  # (labels, groups)
    group_of = {distinct[i]: (number, len(group)) for number, group in enumerate(groups) for i in group}
    found = np.zeros((len(labels), len(places)))
    for at, place in enumerate(places):
        if place in group_of:
            number, size = group_of[place]
            found[:, at] = loss[:, number] / (size * places.count(place))
    return found


def contributions(module: RankingModel, batch: Batch, labels: Tensor, depth: int) -> Tensor | None:
    """Contribution of each token of a batch to its `labels` (batch, n), (batch, n, length); None if unknown.

    From the head, if it knows; else its label attention; else the gradient of the score times the word vector.

    Args:
        depth: number of best labels among which all of `labels` are; -1 fills rows.
    """
    with torch.no_grad():
        features = module(batch)
        found = module.head.token_contributions(features, labels)
        if found is None and (weights := module.head.attention_weights(features, labels.clamp_min(0))) is not None:
            found = module.backbone.on_tokens(weights, batch)
    return gradients(module, batch, labels, depth) if found is None else found.nan_to_num()


def gradients(module: RankingModel, batch: Batch, labels: Tensor, depth: int) -> Tensor | None:
    """Gradient of scores times word vectors; None if the scores of this model have no gradient.

    A first-order estimate of what a score would lose without the word (Simonyan et al. 2013,
    https://arxiv.org/abs/1312.6034).
    """
    parts = []
    for rows in torch.split(arange(batch), AT_ONCE):
        found = _gradients(module, batch.take(rows), labels[rows], depth)
        if found is None:
            return None
        parts.append(found)
    return torch.cat(parts)


def _gradients(module: RankingModel, batch: Batch, labels: Tensor, depth: int) -> Tensor | None:
    tables = module.backbone.word_embeddings()
    if not tables:
        return None
    # cuDNN has no backward pass for recurrent layers in evaluation mode
    with torch.inference_mode(False), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        with recorded(tables) as lookups:
            ranking = module.head.rank(module(batch), depth)
        if not ranking.scores.requires_grad:
            return None
        if len(batch) > 1 and not all(is_aligned(ids, batch) for ids, _ in lookups):  # words are looked up once
            singles = [_gradients(module, batch.take(row), labels[row], depth) for row in torch.split(arange(batch), 1)]
            return torch.cat([found for found in singles if found is not None])
        same = ranking.labels.unsqueeze(1) == labels.unsqueeze(2)  # (batch, n, depth)
        scores = (ranking.scores.unsqueeze(1) * same).sum(2)
        vectors = [vector for _, vector in lookups]
        columns = []
        for column in scores.unbind(1):
            slopes = torch.autograd.grad(column.sum(), vectors, retain_graph=True, allow_unused=True)
            known = [(ids, v, slope) for (ids, v), slope in zip(lookups, slopes, strict=True) if slope is not None]
            each = [on_batch(ids, (v * slope).sum(-1).detach(), batch) for ids, v, slope in known]
            columns.append(torch.stack(each).sum(0) if each else torch.zeros_like(batch.ids, dtype=torch.float32))
    return torch.stack(columns, 1)


def arange(batch: Batch) -> Tensor:
    return torch.arange(len(batch), device=batch.ids.device)


@contextmanager
def recorded(tables: list[nn.Embedding]) -> Iterator[Lookups]:
    """Record ids and vectors of lookups; gradients end at the vectors."""
    lookups: Lookups = []

    def record(_: nn.Module, given: tuple[Any, ...], found: Tensor) -> Tensor:
        vectors = found.detach().requires_grad_()
        lookups.append((given[0], vectors))
        return vectors

    handles = [table.register_forward_hook(record) for table in tables]
    try:
        yield lookups
    finally:
        for handle in handles:
            handle.remove()


def is_aligned(ids: Tensor, batch: Batch) -> bool:
    """Whether the ids are those of the batch, or the first ones of each document."""
    if ids.dim() != 2 or len(ids) != len(batch) or ids.shape[1] > batch.ids.shape[1]:
        return False
    own, mask = (part[:, : ids.shape[1]] for part in (batch.ids, batch.mask))
    return bool(((ids == own) | ~mask).all())


def on_batch(ids: Tensor, values: Tensor, batch: Batch) -> Tensor:
    """Values of looked-up words as values of the tokens of a batch, (batch, length)."""
    if is_aligned(ids, batch):
        return F.pad(values * batch.mask[:, : ids.shape[1]], (0, batch.ids.shape[1] - ids.shape[1]))
    return by_word(values.reshape(1, 1, -1), ids.reshape(1, -1), batch).squeeze(1)  # of a single document
