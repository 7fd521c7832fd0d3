"""Features of (document, candidate label) pairs, in groups that mean the same for every label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array, diags_array
from torch import Tensor, nn

from backbones.tfidf import TfIdf, smooth_idf
from datamodules.batch import Batch, LabelSpace
from heads.base import NEIGHBORS, Neighbors, Ranking, TransitionContext
from heads.blend.candidate_union import Candidates
from heads.blend.sparse import nearest, pack, pack_texts, unpack, unpack_texts, values_at, votes, with_labels
from heads.tree.label_tree import label_matrix
from zoo.core.errors import check_low, check_width

FIFTH = 4  # place of the candidate that gaps are measured to, about the number of labels of a document
MAX_WORDS = 64  # distinct words of a label text that are read


class PairFeatures(nn.Module, ABC):
    """Base class of feature groups: set `names` and implement `forward`; `learn` collects statistics.

    Args:
        space: labels and statistics of the corpus.
        members: names of the heads whose candidates are ranked.
    """

    names: list[str]

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__()
        self.num_labels, self.vocab_size = space.num_labels, space.vocab_size

    @property
    def learned(self) -> bool:
        """Whether all that the features need is there."""
        return True

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        """Learn from the training documents `rows`."""

    @abstractmethod
    def forward(self, candidates: Candidates) -> Tensor:
        """Features (docs, K, len(names)) in single precision, NaN if unknown; anything on padding.

        Computed so that they do not depend on the other documents of a batch: in double precision, or by lookups.
        """


MakeFeatures = Callable[[LabelSpace, Sequence[str]], PairFeatures]


class Scores(PairFeatures):
    """Each member's logit, its rank, its gaps to the best and to the fifth, and whether the member ranked the label."""

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__(space, members)
        kinds = ("logit", "rank", "gap_to_best", "gap_to_fifth", "proposed")
        self.names = [f"{member}_{kind}" for member in members for kind in kinds]

    def forward(self, candidates: Candidates) -> Tensor:
        logits, known = candidates.logits, candidates.known.unsqueeze(-1)
        ordered = logits.masked_fill(~known, -torch.inf).sort(dim=1, descending=True).values
        fifth = (known.sum(1) - 1).clamp(0, FIFTH).unsqueeze(1).expand(-1, 1, logits.shape[-1])
        gaps = [logits - ordered[:, :1], logits - ordered.gather(1, fifth)]
        parts = torch.stack([logits, candidates.ranks, *gaps, candidates.proposed], dim=-1)
        return parts.flatten(2).float()


class Counts(PairFeatures):
    """Logarithms of the label's number of training documents and of its inverse propensity."""

    values: Tensor  # (num_labels, 2)

    def __init__(self, space: LabelSpace, members: Sequence[str]) -> None:
        super().__init__(space, members)
        self.names = ["log_count", "log_inverse_propensity"]
        counts = torch.tensor(space.counts, dtype=torch.float64).log1p()
        inverse = space.inverse_propensity()[: space.num_labels].log()
        self.register_buffer("values", torch.stack([counts, inverse], dim=1).float(), persistent=False)

    def forward(self, candidates: Candidates) -> Tensor:
        return self.values.cpu()[candidates.labels.clamp_min(0)]


class Neighbours(PairFeatures):
    """Share of the label among the most similar training documents, weighted by squared cosine, and the best cosines.

    The best cosine is that of the most similar document, and of the most similar one with the label. Similarity
    is the cosine of TF-IDF, once of the whole document and once of its first words.

    Args:
        k: number of neighbours.
        lead: number of first words.
        min_documents: words in fewer training documents are dropped.
    """

    def __init__(
        self, space: LabelSpace, members: Sequence[str], k: int = 40, lead: int = 80, min_documents: int = 1
    ) -> None:
        super().__init__(space, members)
        check_width(k=k, lead=lead)
        check_low(1, min_documents=min_documents)
        self.k, self.lead = k, lead
        self.names = [f"{part}_{what}" for part in ("text", "lead") for what in ("votes", "best_with_label", "cosine")]
        self.text_weights, self.lead_weights = TfIdf(space, min_documents), TfIdf(space, min_documents)
        self.indexes: list[csr_array] = []  # (vocabulary, documents) of both parts
        self.labels: csr_array | None = None  # (documents, num_labels)
        self.ids: list[str] = []  # of the documents; empty if unknown

    @property
    def learned(self) -> bool:
        return self.labels is not None

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        words = ctx.train_words(self.lead)[rows.numpy()]
        text, lead = words[:, : self.vocab_size], words[:, self.vocab_size : 2 * self.vocab_size]
        self.indexes = []
        for weights, counts in ((self.text_weights, text), (self.lead_weights, lead)):
            weights.learn(counts)
            index = csr_array(weights.matrix(counts).T)
            index.sort_indices()
            self.indexes.append(index)
        self.labels = label_matrix(ctx.train_targets().to("cpu").take(rows), self.num_labels)
        ids = ctx.train_ids()
        self.ids = [ids[row] for row in rows.tolist()] if ids else []

    def forward(self, candidates: Candidates) -> Tensor:
        assert self.labels is not None
        found, labels = [], candidates.labels.clamp_min(0).numpy()
        parts = ((self.text_weights, candidates.words), (self.lead_weights, candidates.words.first(self.lead)))
        for (weights, batch), index in zip(parts, self.indexes, strict=True):
            near = nearest(weights.matrix(weights.counts(batch)), index, self.k)
            shares = csr_array(votes(near, 2, index.shape[1]) @ self.labels)
            shares.sort_indices()
            found.append(torch.from_numpy(values_at(shares, np.arange(len(labels))[:, None], labels)))
            found.append(self._best_with_label(near, labels))
            found.append(near.scores[:, :1].float().expand(labels.shape))
        return torch.stack(found, dim=-1)

    def _best_with_label(self, near: Ranking, labels: np.ndarray) -> Tensor:
        """Largest cosine of the neighbors that have the label, 0 if none has it, (docs, K)."""
        assert self.labels is not None
        documents = near.labels.clamp_min(0).numpy()
        has = values_at(self.labels, documents[:, :, None], labels[:, None, :]) > 0  # (docs, k, K)
        cosines = near.scores.float() * (near.labels >= 0)
        return (cosines.unsqueeze(-1) * torch.from_numpy(has)).amax(1)

    def neighbors(self, batch: Batch, labels: Tensor) -> Neighbors | None:
        """Training documents with similar texts that have each of `labels` (docs, n)."""
        if self.labels is None:
            return None
        near = nearest(self.text_weights.matrix(self.text_weights.counts(batch)), self.indexes[0], self.k)
        return Neighbors(*with_labels(near, self.labels, labels.cpu().clamp_min(0).numpy(), NEIGHBORS), self.ids)

    def get_extra_state(self) -> dict[str, Any] | None:
        if self.labels is None:
            return None
        text, lead = self.indexes
        ids = {"ids": pack_texts(self.ids)} if self.ids else {}
        return {"text": pack(text), "lead": pack(lead), "labels": pack(self.labels)} | ids

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        self.indexes, self.labels, self.ids = [], None, []
        if state is not None:
            what = "the index of training documents"
            labels = unpack(state.get("labels"), what, None, self.num_labels)
            shape = (self.vocab_size, labels.shape[0])
            self.indexes, self.labels = [unpack(state.get(part), what, *shape) for part in ("text", "lead")], labels
            self.ids = unpack_texts(state.get("ids"), "the ids of training documents", labels.shape[0])


class LabelWords(PairFeatures):
    """IDF-weighted share of the words of the label's text that occur in the document, and among its first words.

    The text is the label's description, or else its name. Once for its first words, which are the name, and once for
    all of it, with other names and parents. Unknown for labels without known words.

    Args:
        lead: number of first words of a document.
        name: number of distinct first words of a label's text.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str], lead: int = 40, name: int = 4) -> None:
        super().__init__(space, members)
        check_width(lead=lead, name=name)
        self.lead, self.name = lead, name
        self.names = [f"{text}_words_in_{part}" for text in ("name", "description") for part in ("text", "lead")]
        self.weights = TfIdf(space)  # only counts words
        self.texts: dict[str, csr_array] = {}  # (num_labels, vocabulary): shares of the words; rows sum to 1

    @property
    def learned(self) -> bool:
        return bool(self.texts)

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        words = self._label_words(ctx).numpy()
        idf, frequency = smooth_idf(ctx.train_words()[rows.numpy()])
        for text, size in (("name", self.name), ("description", MAX_WORDS)):
            part = words[:, :size]
            # Not words of no training document: in new ones they are one unknown word, which training documents lack.
            label, place = ((part >= 0) & (frequency[part] > 0)).nonzero()
            ids = part[label, place]
            totals = np.bincount(label, idf[ids], self.num_labels)
            matrix = csr_array(coo_array((idf[ids] / totals[label], (label, ids)), (self.num_labels, self.vocab_size)))
            matrix.sort_indices()
            self.texts[text] = matrix.astype(np.float32)

    def _label_words(self, ctx: TransitionContext) -> Tensor:
        """Distinct words of each label's text in their order, padded with -1, (num_labels, MAX_WORDS), on the CPU."""
        table = torch.zeros(self.num_labels, MAX_WORDS, dtype=torch.int32)
        for _, batch in ctx.label_features(unseen=True):
            for label, ids, mask in zip(batch.rows.tolist(), batch.ids.cpu(), batch.mask.cpu(), strict=True):
                if label >= 0:  # the rest is padding of processes
                    words = torch.tensor(list(dict.fromkeys(ids[mask].tolist()))[:MAX_WORDS], dtype=torch.int32)
                    table[label, : len(words)] = words + 1
        return ctx.sum(table.to(self.weights.idf.device)).cpu() - 1  # rows of other processes are zeros

    def forward(self, candidates: Candidates) -> Tensor:
        batch, known = candidates.words, candidates.known
        documents = [self.weights.counts(batch.first(length)) for length in (None, self.lead)]
        row = known.nonzero()[:, 0].numpy()
        found = torch.full((*known.shape, len(self.names)), torch.nan)
        for number, matrix in enumerate(self.texts.values()):
            words = matrix[candidates.labels[known].numpy()]  # (pairs, vocabulary)
            sizes = np.diff(words.indptr)
            pair = np.arange(len(sizes)).repeat(sizes)
            for place, document in enumerate(documents):
                there = values_at(document, row[pair], words.indices) > 0
                shares = np.bincount(pair, words.data * there, len(sizes)).astype(np.float64)  # of an empty list: int
                shares[sizes == 0] = np.nan
                found[..., 2 * number + place][known] = torch.from_numpy(shares).float()
        return found

    def get_extra_state(self) -> dict[str, Any] | None:
        return {text: pack(matrix) for text, matrix in self.texts.items()} or None

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        shape = (self.num_labels, self.vocab_size)
        texts = ("name", "description") if state else ()
        self.texts = {text: unpack((state or {}).get(text), "the label words", *shape) for text in texts}


class Cooccurrence(PairFeatures):
    """Maximum and sum of P(label | other) p(other) over the best other candidates.

    P is estimated on training documents, and p is the sigmoid of the members' mean logit.

    Args:
        others: number of other candidates.
    """

    def __init__(self, space: LabelSpace, members: Sequence[str], others: int = 10) -> None:
        super().__init__(space, members)
        check_width(others=others)
        self.others = others
        self.names = ["cooccurrence_max", "cooccurrence_sum"]
        self.chances: csr_array | None = None  # P(column | row), (num_labels, num_labels), without the diagonal

    @property
    def learned(self) -> bool:
        return self.chances is not None

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        labels = label_matrix(ctx.train_targets().to("cpu").take(rows), self.num_labels)
        counts = labels.sum(0).clip(1)
        together = coo_array(labels.T @ labels)
        apart = together.row != together.col
        row, column, data = together.row[apart], together.col[apart], together.data[apart]
        together = csr_array(coo_array((data, (row, column)), together.shape))
        self.chances = csr_array(diags_array(1 / counts) @ together).astype(np.float32)
        self.chances.sort_indices()

    def forward(self, candidates: Candidates) -> Tensor:
        assert self.chances is not None
        best = candidates.mean.sort(dim=1, descending=True, stable=True)
        given = best.indices[:, : self.others]
        weights = best.values[:, : self.others].sigmoid()  # 0 on padding
        labels = candidates.labels.clamp_min(0)
        chances = values_at(self.chances, labels.gather(1, given).numpy()[:, :, None], labels.numpy()[:, None])
        terms = weights.unsqueeze(-1) * torch.from_numpy(chances)  # (docs, others, K)
        return torch.stack([terms.amax(1), terms.sum(1)], dim=-1).float()

    def get_extra_state(self) -> dict[str, Any] | None:
        return None if self.chances is None else pack(self.chances)

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        shape = (self.num_labels, self.num_labels)
        self.chances = None if state is None else unpack(state, "the co-occurrence of labels", *shape)


class FeatureGroups(nn.Module):
    """Feature groups as one."""

    def __init__(self, groups: Sequence[PairFeatures]) -> None:
        super().__init__()
        self.groups: Sequence[PairFeatures] = nn.ModuleList(groups)  # type: ignore[assignment]
        self.names = [name for group in groups for name in group.names]

    @property
    def learned(self) -> bool:
        return all(group.learned for group in self.groups)

    def learn(self, ctx: TransitionContext, rows: Tensor) -> None:
        for group in self.groups:
            group.learn(ctx, rows)

    def forward(self, candidates: Candidates) -> Tensor:
        """Features of all known candidates, document by document, (pairs, features)."""
        return torch.cat([group(candidates)[candidates.known] for group in self.groups], dim=1)
