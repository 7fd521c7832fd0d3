"""A loss over documents x labels that is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1024  # labels of a block
BLOCK = {"cpu": 2**20}  # numbers in the largest tensor of a block: few enough for a processor's cache
GPU_BLOCK = 2**26  # or many enough to keep a GPU busy

Tensors = tuple[Tensor, ...]
Score = Callable[[Tensors, Tensor | None, Tensors], Tensor]  # a block of logits (docs, labels)


class Group(NamedTuple):
    """Some documents of a batch, as far as they are long."""

    first: int
    end: int
    length: int
    mask: Tensor | None  # (docs, length); none where there is no padding

    def rows(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(t if t is None else t[self.first : self.end, : self.length] for t in tensors)


def groups_of_documents(mask: Tensor, tokens: Sequence[Tensor], labels: int) -> list[Group]:
    """As many documents at a time as make, with so many labels, a block of the size that the device likes.

    Padding is at their ends.
    """
    lengths = mask.sum(1).tolist()
    size = BLOCK.get(mask.device.type, GPU_BLOCK)
    widest = max(1, *lengths, *(tensor.shape[-1] for tensor in tokens))  # weights by token, or what they add up to
    step = max(size // (widest * labels), 1)
    groups = []
    for first in range(0, len(lengths), step):
        mine = lengths[first : first + step]
        length = max(*mine, 1)
        padded = mask[first : first + len(mine), :length] if min(mine) < length else None
        groups.append(Group(first, first + len(mine), length, padded))
    return groups


def chunks_of_labels(num_labels: int) -> list[slice]:
    return [slice(first, min(first + CHUNK, num_labels)) for first in range(0, num_labels, CHUNK)]


class BlockwiseBCE(torch.autograd.Function):
    """Binary cross-entropy summed over documents and labels, and its gradients with it, one block at a time.

    Once the logits of a block are known, so are their gradients: with both made at once, nothing of a block is kept
    for the way back, or computed again there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        score: Score,
        mask: Tensor,
        rows: Tensor,
        columns: Tensor,
        weight: Tensor | None,
        sizes: tuple[int, int],
        *tensors: Tensor,
    ) -> Tensor:
        """Sum over all pairs; `tensors` are so many by token, so many by label, and the others that `score` uses."""
        wanted = ctx.needs_input_grad[6:]
        grads = [torch.zeros_like(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        (tokens, labels, shared), (of_tokens, of_labels, of_shared) = parted(tensors, sizes), parted(grads, sizes)
        total = torch.zeros((), device=mask.device)
        groups = groups_of_documents(mask, tokens, min(len(labels[0]), CHUNK))
        for chunk in chunks_of_labels(len(labels[0])):
            some_labels = leaves([tensor[chunk] for tensor in labels], of_labels)
            for docs in groups:
                some_tokens = leaves(docs.rows(tokens), of_tokens)
                with torch.set_grad_enabled(any(wanted)):
                    logits = score(some_tokens, docs.mask, some_labels).float()
                    loss = block_bce(logits, rows - docs.first, columns - chunk.start, weight, chunk)
                total += loss.detach()
                places = (*docs.rows(of_tokens), *(g if g is None else g[chunk] for g in of_labels), *of_shared)
                add_gradients(loss, (*some_tokens, *some_labels, *shared), places)
        ctx.grads = grads
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return (*[None] * 6, *handed_out(ctx, scale))


def handed_out(ctx: Any, scale: Tensor) -> list[Tensor | None]:
    """The gradients that a forward pass has left in `ctx`, which has them once."""
    if ctx.grads is None:
        raise RuntimeError("backward() a second time: the gradients of this loss have been handed out")
    grads, ctx.grads = ctx.grads, None
    return [None if grad is None else grad.mul_(scale) for grad in grads]


def parted(tensors: Sequence[Any], sizes: tuple[int, int]) -> tuple[Sequence[Any], ...]:
    """Those by token, those by label, and the rest."""
    return tensors[: sizes[0]], tensors[sizes[0] : sum(sizes)], tensors[sum(sizes) :]


def leaves(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensors:
    """The same without history; those that have a gradient to be found want one."""
    pairs = zip(tensors, grads, strict=True)
    return tuple(tensor.detach().requires_grad_(grad is not None) for tensor, grad in pairs)


def add_gradients(loss: Tensor, inputs: Sequence[Tensor], places: Sequence[Tensor | None]) -> None:
    """Add the gradient by each input to its place, if it has one."""
    pairs = [(tensor, place) for tensor, place in zip(inputs, places, strict=True) if place is not None]
    if pairs:
        found = torch.autograd.grad(loss, [tensor for tensor, _ in pairs], allow_unused=True)
        for (_, place), grad in zip(pairs, found, strict=True):
            if grad is not None:
                place += grad


def block_bce(logits: Tensor, rows: Tensor, columns: Tensor, weight: Tensor | None, chunk: slice) -> Tensor:
    """Sum over a block; `rows` and `columns` number the positive pairs from its corner, those outside it too."""
    docs, labels = logits.shape
    softplus = F.softplus(logits)
    negative = softplus.sum() if weight is None else (softplus * weight[chunk]).sum()
    inside = (rows >= 0) & (rows < docs) & (columns >= 0) & (columns < labels)
    positive = logits[rows.clamp(0, docs - 1), columns.clamp(0, labels - 1)]
    return negative - (positive * inside).sum()
