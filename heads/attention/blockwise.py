"""Losses over (documents, labels) that never hold the whole score matrix in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from zoo.core.exporting import is_exporting

CHUNK = 1024  # labels of a block
BLOCK = {"cpu": 2**20}  # elements in the largest tensor of a block: few enough for the CPU's cache
GPU_BLOCK = 2**26  # or many enough to keep a GPU busy

Tensors = tuple[Tensor, ...]
Labels = slice | Tensor  # rows of the label tensors in a block: one slice for all documents, or (docs, n) indices
Score = Callable[[Tensors, Tensor | None, Tensors], Tensor]  # (tokens, mask, labels) -> logits (docs, n)
BlockLoss = Callable[[Tensor, slice, Labels], Tensor]  # (logits, documents, labels) -> sum over the block


class DocumentSlice(NamedTuple):
    """Slice of a batch, trimmed to its longest document."""

    documents: slice
    length: int
    mask: Tensor | None  # (docs, length); None if nothing is padded

    def trim(self, tensors: Sequence[Tensor]) -> Tensors:
        return tuple(tensor[self.documents, : self.length] for tensor in tensors)


Blocks = Iterable[tuple[DocumentSlice, Labels]]


def split_documents(mask: Tensor, tokens: Sequence[Tensor], labels: int, width: int = 1) -> list[DocumentSlice]:
    """Split a right-padded batch so that each slice makes, with this number of labels, a block of the right size.

    `width` is that of the widest tensor (docs, labels, width) beside attention weights and attended values.
    """
    if is_exporting():
        return [DocumentSlice(slice(None), sys.maxsize, mask)]
    lengths = mask.sum(1).tolist()
    size = BLOCK.get(mask.device.type, GPU_BLOCK)
    widest = max(width, *lengths, *(tensor.shape[-1] for tensor in tokens))  # attention weights, or attended values
    step = max(size // (widest * labels), 1)
    slices = []
    for first in range(0, len(lengths), step):
        some = lengths[first : first + step]
        documents, length = slice(first, first + len(some)), max(*some, 1)
        slices.append(DocumentSlice(documents, length, mask[documents, :length] if min(some) < length else None))
    return slices


def label_chunks(num_labels: int) -> list[slice]:
    return [slice(first, min(first + CHUNK, num_labels)) for first in range(0, num_labels, CHUNK)]


def blockwise_loss(
    score: Score, block_loss: BlockLoss, blocks: Blocks, tokens: Tensors, labels: Tensors, shared: Sequence[Tensor]
) -> Tensor:
    """Sum of a loss over blocks of documents and labels; its memory is that of one block.

    Args:
        score: logits of a block, from its slices of `tokens`, its mask and its rows of `labels`.
        block_loss: summed loss of these logits.
        blocks: documents and labels of each block.
        tokens: tensors (docs, length, any).
        labels: tensors (labels, any).
        shared: other tensors with a gradient that `score` reads.
    """
    tensors = [*tokens, *labels, *shared]
    if not torch.is_grad_enabled():  # the function could not tell: inside it, gradients are always off
        tensors = [tensor.detach() for tensor in tensors]
    return apply(_BlockwiseLoss, score, block_loss, blocks, (len(tokens), len(labels)), *tensors)


def apply(function: type[Function], *inputs: Any) -> Tensor:
    """`function.apply`, typed."""
    output: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return output


class _BlockwiseLoss(Function):
    """Computes the gradients together with the loss.

    Once the logits of a block are known, so are their gradients: nothing of a block is kept for the backward pass or
    recomputed there.
    """

    @staticmethod
    def forward(
        ctx: Any, score: Score, block_loss: BlockLoss, blocks: Blocks, sizes: tuple[int, int], *tensors: Tensor
    ) -> Tensor:
        wanted, (num_tokens, num_labels) = ctx.needs_input_grad[4:], sizes
        grads = [torch.zeros_like(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        num_rows = num_tokens + num_labels  # tensors of which a block has a part
        total = torch.zeros((), device=tensors[0].device)
        for docs, labels in blocks:
            window = docs.documents, slice(docs.length)
            places = [*[window] * num_tokens, *[labels] * num_labels, *[...] * (len(tensors) - num_rows)]
            parts = tuple(
                tensor[place].detach().requires_grad_(want)
                for tensor, place, want in zip(tensors[:num_rows], places, wanted, strict=False)
            )
            with torch.set_grad_enabled(any(wanted)):
                logits = score(parts[:num_tokens], docs.mask, parts[num_tokens:]).float()
                loss = block_loss(logits, docs.documents, labels)
            total += loss.detach()
            add_gradients(loss, (*parts, *tensors[num_rows:]), grads, places)
        ctx.grads = grads
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("backward() was called twice: the gradients of this loss are handed out once")
        grads, ctx.grads = ctx.grads, None
        return (*[None] * 4, *(None if grad is None else grad.mul_(scale) for grad in grads))


def add_gradients(loss: Tensor, inputs: Sequence[Tensor], totals: Sequence[Tensor | None], places: list[Any]) -> None:
    """Add the gradient of each input at its place in `totals`; None means that it needs no gradient."""
    wanted = [row for row in zip(inputs, totals, places, strict=True) if row[1] is not None]
    found = torch.autograd.grad(loss, [tensor for tensor, _, _ in wanted], allow_unused=True) if wanted else ()
    for (_, total, place), grad in zip(wanted, found, strict=True):
        if grad is None or total is None:
            continue
        if isinstance(place, Tensor):
            total.index_add_(0, place.flatten(), grad.flatten(0, 1))
        else:
            total[place].add_(grad)  # a view: no copy
