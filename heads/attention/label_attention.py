"""Label attention, and the base class of heads that use it, in blocks of bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.utils.checkpoint import checkpoint

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.attention.blockwise import Labels, Score, Tensors, apply, blockwise_loss, label_chunks, split_documents
from heads.base import DenseHead, TransitionContext, check_low
from heads.loss_base import Loss, MakeLoss
from zoo.core.errors import UserError
from zoo.core.exporting import is_exporting

TINY = 1e-6  # norm below which a centered label text is no direction
FLOOR = -60.0  # lowest score relative to the maximum: below it exp() is denormal, and very slow on a CPU


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """sum_t alpha[t] values[t] with alpha = softmax_t <query, keys[t]>, (docs, n, width).

    Args:
        queries: (n, dim), the same for all documents, or (docs, n, dim).
        keys: (docs, length, dim).
        values: (docs, length, width). Apply a linear map of the result to these instead: it is cheaper on tokens.
        mask: (docs, length), False on padding; None if nothing is padded.
    """
    if is_exporting():
        return torch.matmul(
            attention(queries, keys, keys.new_ones(keys.shape[:2]).bool() if mask is None else mask), values
        )
    return apply(_Attend, queries, keys, values, mask)


def attention(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Attention weights alpha of `attend`, (docs, n, length), for inspection: queries (docs, n, dim) should be few."""
    scores = at_least_float32(torch.matmul(queries.to(keys.dtype), keys.transpose(1, 2)))
    return scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)


def attend_pairs(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, targets: Targets) -> Tensor:
    """Attend only for the (document, label) pairs of `targets`, (pairs, width), with one query per pair."""
    counts, place = targets.counts, targets.places
    padded = queries.new_zeros(len(counts), int(counts.max()) if len(counts) else 0, queries.shape[-1])
    padded = padded.index_put((targets.rows, place), queries)
    return attend(padded, keys, values, mask)[targets.rows, place]


class _Attend(Function):
    """Works in place on the attention weights, the one large tensor, and keeps one copy of them for backward."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        queries = queries.to(keys.dtype)
        # Detached: for queries that require a gradient, matmul makes one more copy of the scores.
        scores = at_least_float32(torch.matmul(queries.detach(), keys.transpose(1, 2)))  # (docs, n, length)
        if mask is not None:
            scores.masked_fill_(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).clamp_(min=FLOOR).exp_()
        if mask is not None:
            weights.mul_(mask.unsqueeze(1))
        total = weights.sum(-1, keepdim=True).clamp_min_(1)  # the maximum weighs 1; less only without tokens
        weights = weights.to(values.dtype)
        attended = at_least_float32(torch.matmul(weights, values)).div_(total)
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


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class LabelwiseHead(DenseHead):
    """Base class of heads in which every label reads the tokens of a document.

    Implement `per_token` (tensors with a row per token), `per_label` (tensors with a row per label) and `score`, which
    computes logits from slices of both. Only one block of documents and labels is in memory at a time.

    Args:
        negatives: number of sampled negative labels per batch, in addition to all labels of its documents. They are
            re-weighted, so that the expected loss is that over all labels. Default: train on all labels.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy.
    """

    needs_tokens = True

    def __init__(self, dim: int, space: LabelSpace, negatives: int | None = None, loss: MakeLoss | None = None) -> None:
        super().__init__(dim, space, loss)
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
        """Logits (docs, n) of a block; `mask` is None if nothing is padded."""

    def queries(self) -> nn.Parameter | None:
        """Attention queries in the space of token states, (num_labels, dim); None if the head has none."""
        return None

    def label_vectors(self) -> Tensor | None:
        return self.queries()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor | None:
        queries = self.queries()
        return None if queries is None else attention(queries[labels], features.tokens, features.mask)

    def forward(self, features: Features) -> Tensor:
        return self.all_labels(features, self.score)

    def all_labels(self, features: Features, score: Score) -> Tensor:
        """Output of `score` for all documents and labels, (..., docs, num_labels), computed block by block."""
        tokens, labels, chunks = self.per_token(features), self.per_label(), label_chunks(self.num_labels)
        rows = []
        for docs in split_documents(features.mask, tokens, chunks[0].stop):
            logits = []
            for chunk in chunks:
                block = docs.trim(tokens), docs.mask, tuple(tensor[chunk] for tensor in labels)
                if torch.is_grad_enabled():  # a loss on dense logits: recompute the block in the backward pass
                    logits.append(checkpoint(score, *block, use_reentrant=False))
                else:
                    logits.append(score(*block))
            rows.append(torch.cat(logits, dim=-1))
        return torch.cat(rows, dim=-2)

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        return {"loss": self.label_loss(features, targets)}

    def label_loss(self, features: Features, targets: Targets, tokens: Tensors | None = None) -> Tensor:
        """Loss over all labels, or a sample of them: sum over labels, mean over documents.

        Pass the output of `per_token` as `tokens` if it is already computed.
        """
        tokens = self.per_token(features) if tokens is None else tokens
        known = targets.below(self.num_labels)
        return labelwise_loss(self, self.score, self.criterion, tokens, features.mask, known, self.negatives)

    # --- transitions

    @torch.no_grad()
    def start_from_label_texts(self, ctx: TransitionContext) -> None:
        """Initialize each label's query with the mean token state of its text, encoded by the current backbone.

        The mean over all texts is subtracted, and the norms of the queries are kept. Labels without known words keep
        their queries.
        """
        if (queries := self.queries()) is None:
            raise UserError(
                f"{type(self).__name__} has no label queries with these settings: remove `start_from_label_texts`"
            )
        sums = torch.zeros(self.num_labels, self.dim + 1, dtype=torch.float64, device=queries.device)
        for features, batch in ctx.label_features():
            weights = features.mask.double() / features.mask.sum(1, keepdim=True)
            means = torch.einsum("bt,btd->bd", weights, features.tokens.double())
            sums[batch.rows] = F.pad(means, (0, 1), value=1.0)
        sums = ctx.sum(sums)
        states, known = sums[:, :-1], sums[:, -1:]
        states = (states - states.sum(0) / known.sum().clamp_min(1)) * known
        lengths = states.norm(dim=-1, keepdim=True)
        initial = queries.norm(dim=-1, keepdim=True) * (states / lengths.clamp_min(TINY)).to(queries)
        queries.copy_(torch.where(lengths > TINY, initial, queries))


class Labelwise(Protocol):
    """A module that has tensors with a row per label."""

    def per_label(self) -> Tensors: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def labelwise_loss(
    module: Labelwise,
    score: Score,
    loss: Loss,
    tokens: Tensors,
    mask: Tensor,
    known: Targets,
    negatives: int | None = None,
) -> Tensor:
    """Loss of the logits that `score` computes from tokens and the module's labels; mean over documents.

    `known` has no labels that training never saw. `negatives` as in `LabelwiseHead`.
    """
    labels, weight, chosen = module.per_label(), None, None
    own = {id(tensor) for tensor in labels}
    shared = [p for p in module.parameters() if p.requires_grad and id(p) not in own]
    num_labels, rows, columns = len(labels[0]), known.rows, known.indices
    if negatives is not None:
        chosen, weight = sample_labels(columns, num_labels, negatives)
        place = columns.new_zeros(num_labels)
        place[chosen] = torch.arange(len(chosen), device=chosen.device)
        columns, labels = place[columns], tuple(tensor[chosen] for tensor in labels)
    documents = loss.document_values(known)

    def block_loss(logits: Tensor, docs: slice, chunk: Labels) -> Tensor:
        assert isinstance(chunk, slice)
        which = chunk if chosen is None else chosen[chunk]
        values = None if documents is None else documents[docs]
        weights = None if weight is None else weight[chunk]
        return loss.over_block(logits, rows - docs.start, columns - chunk.start, which, weights, values)

    chunks = label_chunks(len(labels[0]))
    slices = split_documents(mask, tokens, chunks[0].stop)
    blocks = [(docs, chunk) for chunk in chunks for docs in slices]
    return blockwise_loss(score, block_loss, blocks, tokens, labels, shared) / len(mask)


def sample_labels(positive: Tensor, num_labels: int, negatives: int) -> tuple[Tensor, Tensor]:
    """All positive labels and sampled negatives, (n,), and the weights of an unbiased sum over all labels, (n,)."""
    is_positive = torch.zeros(num_labels, dtype=torch.bool, device=positive.device)
    is_positive[positive] = True
    rest = (~is_positive).nonzero().flatten()
    drawn = rest[torch.randperm(len(rest), device=rest.device)[:negatives]]
    chosen = torch.cat([is_positive.nonzero().flatten(), drawn])
    weight = torch.ones(len(chosen), device=positive.device)
    weight[len(chosen) - len(drawn) :] = len(rest) / max(len(drawn), 1)
    return chosen, weight
