"""RankNet: re-scores candidates so that rare labels rank before frequent ones, and both before wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

Scale = Literal["log_probabilities", "logits", "probabilities"]
Form = Literal["bottleneck", "full"]


class RankNet(nn.Module):
    """Residual blocks on the scores f of a document's candidates, and a shared exponent of the inverse propensity r.

    The forms, of which the paper has the first two:

    - `bottleneck`: F = W2 ReLU(W1 f) + f, with W2 = 0 at the start.
    - `full`: F = Wr f + f with Wr = diag(d) + W2 W1, which starts as diag(r - 1): F = r f.
    - An exponent a adds a ln r to logarithmic scores: without blocks and with a = 1, that is the order of r f.

    W1 f is a weighted sum of embedding rows, and only the rows of W2 for the candidates are read: the cost of a batch
    does not depend on the number of labels. W1 reads the probabilities of logarithmic scores too: most candidates have
    large negative ones, which would dominate the sum.

    Args:
        inverse: inverse propensities r, (num_labels,).
        width: width of the bottleneck (V).
        blocks: number of stacked blocks; only the first one of `full` starts as diag(r - 1), further ones with 0.
        sparse: sparse gradients of the tables.
        scale: scale of the scores.
        form: form of the blocks.
        exponent: start of a. Default: no such term.
    """

    log_inverse: Tensor  # (num_labels,) ln r

    def __init__(
        self,
        inverse: Tensor,
        width: int,
        blocks: int,
        sparse: bool = False,
        scale: Scale = "log_probabilities",
        form: Form = "bottleneck",
        exponent: float | None = None,
    ) -> None:
        super().__init__()
        self.width, self.sparse, self.scale, self.form, self.start = width, sparse, scale, form, exponent
        size, diagonals = len(inverse), blocks * (form == "full")
        bags = [nn.EmbeddingBag(size, width, mode="sum", sparse=sparse) for _ in range(blocks)]
        self.first = nn.ModuleList(bags)
        self.second = nn.ModuleList(nn.Embedding(size, width, sparse=sparse) for _ in range(blocks))
        self.diagonal = nn.ModuleList(nn.Embedding(size, 1, sparse=sparse) for _ in range(diagonals))
        self.exponent = None if exponent is None else nn.Parameter(torch.tensor(float(exponent)))
        self.register_buffer("log_inverse", inverse.log(), persistent=False)
        self.reset()

    @property
    def tables(self) -> list[nn.Embedding | nn.EmbeddingBag]:
        modules = (*self.first, *self.second, *self.diagonal)
        return [table for table in modules if isinstance(table, nn.Embedding | nn.EmbeddingBag)]

    @torch.no_grad()
    def reset(self, generator: torch.Generator | None = None) -> None:
        """Initialize all parameters."""
        self.neutralize()
        for table in self.tables:
            if table in self.first:  # small, so that Adam's first steps change scores by hundredths
                table.weight.copy_(torch.randn(table.weight.shape, generator=generator) * self.width**-0.5)
            elif table in self.diagonal[:1]:
                table.weight.copy_(self.log_inverse.expm1().unsqueeze(1))
        if self.exponent is not None and self.start is not None:
            self.exponent.fill_(self.start)

    @torch.no_grad()
    def neutralize(self) -> None:
        """Make F = f."""
        for table in self.tables:
            if table not in self.first:
                table.weight.zero_()
        if self.exponent is not None:
            self.exponent.zero_()

    @torch.no_grad()
    def grow(self, inverse: Tensor) -> None:
        """Append rows for new labels, which do not change the scores of others; `inverse` is that of all labels."""
        self.log_inverse = inverse.log()
        for table in self.tables:
            old = table.weight
            rows = old.new_zeros(len(inverse) - len(old), old.shape[1])
            if table in self.diagonal[:1]:
                rows.copy_(self.log_inverse[len(old) :].expm1().unsqueeze(1))
            table.weight = nn.Parameter(torch.cat([old, rows]), requires_grad=old.requires_grad)
            table.num_embeddings = len(inverse)

    @torch.no_grad()
    def largest_factor(self) -> float:
        """Largest factor by which exponent and diagonal multiply a probability, at least 1."""
        factor = 1.0
        for table in self.diagonal:
            factor *= 1 + max(float(table.get_parameter("weight").max()), 0.0)
        if self.exponent is not None:
            factor *= float((self.exponent.clamp_min(0) * self.log_inverse.max()).exp())
        return factor

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities of scores, at most 1 where these are on a logarithmic scale."""
        if self.scale == "logits":
            return scores.sigmoid()
        return scores.clamp_max(0).exp() if self.scale == "log_probabilities" else scores

    def blocks(self) -> Iterator[tuple[nn.Module, nn.Module, nn.Module | None]]:
        yield from zip(self.first, self.second, self.diagonal or [None] * len(self.first), strict=True)

    def forward(self, labels: Tensor, scores: Tensor) -> Tensor:
        """F of candidates, all (batch, K); padding, label -1, is ignored."""
        known, labels = labels >= 0, labels.clamp_min(0).long()
        for first, second, diagonal in self.blocks():
            hidden = first(labels, per_sample_weights=self.probabilities(scores) * known)  # (batch, V)
            hidden = hidden.relu() if self.form == "bottleneck" else hidden
            change = (second(labels) @ hidden.unsqueeze(-1)).squeeze(-1)
            scores = scores + change + (0 if diagonal is None else diagonal(labels).squeeze(-1) * scores)
        return scores if self.exponent is None else scores + self.exponent * self.log_inverse[labels]


def population_sums(scores: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """Sum over pairs i, j of a document's labels of [(n_i - n_j) / (n_i + n_j) (F_i - F_j)]_+, (batch,).

    All inputs are (batch, P); `mask` is False on padding. Each pair counts twice, and there is no margin.
    """
    n_i, n_j, f_i, f_j = counts[:, :, None], counts[:, None], scores[:, :, None], scores[:, None]
    weight = (n_i - n_j) / (n_i + n_j).clamp_min(1)  # 0 for two labels without documents
    pairs = mask[:, :, None] & mask[:, None]
    return ((weight * (f_i - f_j)).relu() * pairs).sum((1, 2))


def margin_sums(scores: Tensor, mask: Tensor, others: Tensor, others_mask: Tensor, margin: float) -> Tensor:
    """Sum over a document's labels i (batch, P) and other labels k (batch, N) of [F_k - F_i + c]_+, (batch,)."""
    pairs = mask[:, :, None] & others_mask[:, None]
    return ((others[:, None] - scores[:, :, None] + margin).relu() * pairs).sum((1, 2))
