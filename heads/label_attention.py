"""Attention of each label over a document's tokens, and the heads that live on it, in blocks of bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import DenseHead, TransitionContext, check_low
from heads.blockwise import CHUNK, BlockwiseBCE, Score, Tensors, chunks_of_labels, groups_of_documents

TINY = 1e-6  # a text that is no different from all others
FLOOR = -60.0  # of a score below the best: exp() of less soon is a denormal number, which a CPU computes very slowly


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """sum_t alpha[t] values[t] with alpha = softmax_t <query, keys[t]>, (docs, n, width).

    Args:
        queries: (n, dim), the same for all documents, or (docs, n, dim).
        keys: (docs, length, dim).
        values: (docs, length, width). A linear map of the result is cheaper made here, on tokens.
        mask: (docs, length), False on padding; none means that there is none.
    """
    attended: Tensor = _Attend.apply(queries, keys, values, mask)  # type: ignore[no-untyped-call]
    return attended


def attention(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """The weights alpha of `attend` themselves, (docs, n, length), for a few queries (docs, n, dim) to look at."""
    scores = widened(torch.matmul(queries.to(keys.dtype), keys.transpose(1, 2)))
    return scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)


def attend_pairs(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, targets: Targets) -> Tensor:
    """Attention for the (document, label) pairs of `targets` alone, (pairs, width); one of `queries` for each."""
    counts = targets.indptr.diff()
    place = torch.arange(len(targets.rows), device=queries.device) - targets.indptr[targets.rows]
    padded = queries.new_zeros(len(counts), int(counts.max()) if len(counts) else 0, queries.shape[-1])
    padded = padded.index_put((targets.rows, place), queries)
    return attend(padded, keys, values, mask)[targets.rows, place]


class _Attend(torch.autograd.Function):
    """Works in place on the one large tensor, the weights, of which only one copy is kept for the way back."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        queries = queries.to(keys.dtype)
        # Detached: for queries that want a gradient matmul takes another way, with one more copy of the scores.
        scores = widened(torch.matmul(queries.detach(), keys.transpose(1, 2)))  # (docs, n, length)
        if mask is not None:
            scores.masked_fill_(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).clamp_(min=FLOOR).exp_()
        if mask is not None:
            weights.mul_(mask.unsqueeze(1))
        total = weights.sum(-1, keepdim=True).clamp_min_(1)  # less only without any token: the best weighs 1
        weights = weights.to(values.dtype)
        attended = widened(torch.matmul(weights, values)).div_(total)
        ctx.save_for_backward(queries, keys, values, weights, total, attended)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        queries, keys, values, weights, total, attended = ctx.saved_tensors
        grad = grad / total
        of_values = torch.matmul(weights.transpose(1, 2), grad.to(values.dtype)) if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, of_values, None
        of_scores = torch.matmul(grad.to(values.dtype), values.transpose(1, 2))
        of_scores = of_scores.sub_((grad * attended).sum(-1, keepdim=True)).mul_(weights).to(keys.dtype)
        of_queries = of_keys = None
        if ctx.needs_input_grad[0]:
            of_queries = torch.matmul(of_scores, keys)
            if queries.dim() == 2:
                of_queries = of_queries.sum(0)
        if ctx.needs_input_grad[1]:
            of_keys = torch.matmul(of_scores.transpose(1, 2), queries)
        return of_queries, of_keys, of_values, None


def widened(tensor: Tensor) -> Tensor:
    """In single precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class LabelwiseHead(DenseHead):
    """A head that reads the tokens of a document anew for each label, block by block.

    A new one names its tensors with a row for each token (`per_token`) and those with a row for each label
    (`per_label`), and makes logits of some rows of both (`score`). However many labels there are, only the tensors of
    one block of documents and labels are in memory at a time.

    Args:
        negatives: train on the labels of the batch and so many others, drawn anew for each batch and weighted so that
            the loss is the one over all labels on average; all labels by default.
    """

    needs_tokens = True

    def __init__(self, dim: int, space: LabelSpace, negatives: int | None = None) -> None:
        super().__init__(dim, space)
        check_low(1, negatives=negatives)
        self.negatives = negatives

    @abstractmethod
    def per_token(self, features: Features) -> Tensors:
        """Tensors (docs, length, any)."""

    @abstractmethod
    def per_label(self) -> Tensors:
        """Tensors (num_labels, any)."""

    @abstractmethod
    def score(self, tokens: Tensors, mask: Tensor | None, labels: Tensors) -> Tensor:
        """Logits (docs, n) from rows of both; `mask` is none where there is no padding."""

    def queries(self) -> nn.Parameter | None:
        """Vectors of labels that are matched with token states, (num_labels, dim); None where there are none."""
        return None

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        queries = self.queries()
        return None if queries is None else attention(queries[labels], features.tokens, features.mask)

    def forward(self, features: Features) -> Tensor:
        return self.all_labels(features, self.score)

    def all_labels(self, features: Features, score: Score) -> Tensor:
        """What `score` makes of all documents and labels, put together from its blocks (..., docs, labels)."""
        tokens, labels = self.per_token(features), self.per_label()
        rows = []
        for docs in groups_of_documents(features.mask, tokens, min(self.num_labels, CHUNK)):
            logits = []
            for chunk in chunks_of_labels(self.num_labels):
                block = docs.rows(tokens), docs.mask, tuple(tensor[chunk] for tensor in labels)
                if torch.is_grad_enabled():  # for another loss than `loss`: computed again on the way back
                    logits.append(checkpoint(score, *block, use_reentrant=False))
                else:
                    logits.append(score(*block))
            rows.append(torch.cat(logits, dim=-1))
        return torch.cat(rows, dim=-2)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return {"loss": self.bce(features, targets)}

    def bce(self, features: Features, targets: Targets, tokens: Tensors | None = None) -> Tensor:
        """Binary cross-entropy over all labels, or a sample of them: sum over labels, mean over documents.

        `tokens` are those of `per_token`, where they are known already.
        """
        tokens = self.per_token(features) if tokens is None else tokens
        known = targets.below(self.num_labels)
        return labelwise_bce(self, self.score, tokens, features.mask, known, self.negatives)

    # --- transitions

    @torch.no_grad()
    def start_from_label_texts(self, ctx: TransitionContext) -> None:
        """A label's query begins as the mean state of the tokens of its text, as the backbone is now.

        What all texts have in common is taken out, and lengths stay as they were. Labels whose words are unknown keep
        the queries that they have.
        """
        if (queries := self.queries()) is None:
            raise UserError(f"{type(self).__name__}, as it is set, has no queries that could begin as texts of labels")
        sums = torch.zeros(self.num_labels, self.dim + 1, dtype=torch.float64, device=queries.device)
        for features, batch in ctx.label_features():
            weights = features.mask.double() / features.mask.sum(1, keepdim=True)
            means = torch.einsum("bt,btd->bd", weights, features.tokens.double())
            sums[batch.rows] = F.pad(means, (0, 1), value=1.0)
        sums = ctx.sum(sums)
        states, known = sums[:, :-1], sums[:, -1:]
        states = (states - states.sum(0) / known.sum().clamp_min(1)) * known
        lengths = states.norm(dim=-1, keepdim=True)
        begun = queries.norm(dim=-1, keepdim=True) * (states / lengths.clamp_min(TINY)).to(queries)
        queries.copy_(torch.where(lengths > TINY, begun, queries))


class Labelwise(Protocol):
    """A module that has tensors with a row for each label."""

    def per_label(self) -> Tensors: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def labelwise_bce(
    module: Labelwise, score: Score, tokens: Tensors, mask: Tensor, known: Targets, negatives: int | None = None
) -> Tensor:
    """Binary cross-entropy of what `score` makes of tokens and the module's labels, block by block.

    All labels of `known` are the module's. With `negatives` over the labels of the batch and so many others, weighted.
    """
    labels, weight = module.per_label(), None
    own = {id(tensor) for tensor in labels}
    shared = [p for p in module.parameters() if p.requires_grad and id(p) not in own]
    num_labels, rows, columns = len(labels[0]), known.rows, known.indices
    if negatives is not None:
        chosen, weight = sample_labels(columns, num_labels, negatives)
        place = columns.new_zeros(num_labels)
        place[chosen] = torch.arange(len(chosen), device=chosen.device)
        columns, labels = place[columns], tuple(tensor[chosen] for tensor in labels)
    tensors = [*tokens, *labels, *shared]
    if not torch.is_grad_enabled():  # within the function it never is
        tensors = [tensor.detach() for tensor in tensors]
    settings = score, mask, rows, columns, weight, (len(tokens), len(labels))
    total: Tensor = BlockwiseBCE.apply(*settings, *tensors)  # type: ignore[no-untyped-call]
    return total / len(mask)


def sample_labels(positive: Tensor, num_labels: int, negatives: int) -> tuple[Tensor, Tensor]:
    """All positive labels and some others, and the weights that make a sum over them right on average, each (n,)."""
    is_positive = torch.zeros(num_labels, dtype=torch.bool, device=positive.device)
    is_positive[positive] = True
    rest = (~is_positive).nonzero().flatten()
    drawn = rest[torch.randperm(len(rest), device=rest.device)[:negatives]]
    chosen = torch.cat([is_positive.nonzero().flatten(), drawn])
    weight = torch.ones(len(chosen), device=positive.device)
    weight[len(chosen) - len(drawn) :] = len(rest) / max(len(drawn), 1)
    return chosen, weight
