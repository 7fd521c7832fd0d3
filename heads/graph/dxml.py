"""DXML: regression of documents to embeddings of their labels, and nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext, top_labels
from heads.graph.label_graph import co_occurrence
from zoo.core.errors import UserError, check_low, check_width
from zoo.core.ragged import Lists

LIMIT = 16_384  # labels of a dense matrix of walks: 2 GB per copy
ITERATIONS = 8  # of the randomised singular value decomposition


class DXML(Head):
    r"""Deep embedding: documents are mapped to the mean embedding of their labels, and labelled by their neighbours.

    Zhang et al. 2018, "Deep Extreme Multi-label Learning" (https://arxiv.org/abs/1704.03718). Three steps:

    1. `embed_labels`: DeepWalk embeddings v of the labels, from the graph of their co-occurrence.
    2. Training: a network f maps a document to the mean of the embeddings of its labels Y, by the Huber loss h.
    3. `memorize`: keeps f of all training documents. A document gets the labels of its k nearest ones.

    .. math::
        L = \sum_d h_\delta\Big(f_d(x) - \tfrac{1}{|Y|} \sum_{l \in Y} v_{ld}\Big), \qquad
        s_l(x) = \frac{\sum_{n \in N_k(x)} \max(0, \cos_n) \, y_{nl}}{\sum_{n \in N_k(x)} \max(0, \cos_n)}

    Our choices, where the paper leaves them open, and changes to it:

    - The embeddings are those of NetMF (Qiu et al. 2018, https://arxiv.org/abs/1710.02971): the matrix that DeepWalk
      with this window and number of negatives factorises, in closed form, and its truncated singular value
      decomposition. It needs neither walks nor a second training loop, and is the same on every process.
    - The graph has loops, weighted by the documents of a label, because many labels never occur with another one.
    - v has norm sqrt(dim), so that a coordinate is about 1, and delta has a meaning.
    - Neighbours are those of the largest cosine, which also weights their labels: equal weights make many ties.
    - f is a hidden ReLU layer and a linear layer on the document vector of the backbone.
    - Until `memorize`, labels are ranked by the cosine of their own embeddings with f.

    Args:
        embed: width of the embeddings.
        hidden: width of the hidden layer of f.
        neighbours: k.
        window: window of DeepWalk.
        walk_negatives: negative samples of DeepWalk.
        delta: residual from which the Huber loss is linear.
    """

    vectors: Tensor  # (num_labels, embed) v
    memory: Tensor  # (num_documents, embed) unit vectors f / |f| of the training documents
    memory_starts: Tensor  # (num_documents + 1,) and (positives,): their labels, as in `Targets`
    memory_labels: Tensor
    steps: Tensor  # (2,) bool, `embed_labels` and `memorize` have run

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        embed: int = 100,
        hidden: int = 512,
        neighbours: int = 10,
        window: int = 10,
        walk_negatives: int = 1,
        delta: float = 1.0,
    ) -> None:
        super().__init__(dim, space)
        check_width(embed=embed, hidden=hidden, neighbours=neighbours, window=window, walk_negatives=walk_negatives)
        check_low(1e-9, delta=delta)
        if space.num_labels > LIMIT:
            raise UserError(f"DXML embeds at most {LIMIT:,} labels, and there are {space.num_labels:,}")
        self.neighbours, self.window, self.walk_negatives, self.delta = neighbours, window, walk_negatives, delta
        self.network = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, embed))
        documents, positives = space.num_documents, sum(space.counts)
        self.register_buffer("vectors", embed**0.5 * F.normalize(torch.randn(space.num_labels, embed), dim=-1))
        self.register_buffer("memory", torch.zeros(documents, embed))
        self.register_buffer("memory_starts", torch.zeros(documents + 1, dtype=torch.long))
        self.register_buffer("memory_labels", torch.zeros(positives, dtype=torch.long))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.bool))
        self.is_embedded = self.is_memorized = False  # as Python values: reading a buffer would make a GPU wait

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.is_embedded, self.is_memorized = self.steps.tolist()

    def check_indices(self) -> None:
        starts, labels = self.memory_starts.cpu().numpy(), self.memory_labels.cpu().numpy()
        try:
            Lists(starts, labels[: starts[-1]]).check(len(self.memory), self.num_labels)  # the rest is room
        except ValueError as error:
            raise UserError(f"the labels of the training documents in the checkpoint are damaged: {error}") from error

    @property
    def pending(self) -> tuple[str, ...]:
        done = {"embed_labels": self.is_embedded, "memorize": self.is_memorized}
        return tuple(name for name, yes in done.items() if not yes)

    # --- training

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        """Huber loss, summed over the embedding and averaged over documents; those without labels have none."""
        known = targets.below(self.num_labels)
        sums = self.vectors.new_zeros(len(known), self.vectors.shape[1])
        means = sums.index_add_(0, known.rows, self.vectors[known.indices]) / known.counts.clamp_min(1).unsqueeze(1)
        got = self.network(features.pooled).float()
        values = F.huber_loss(got, means, reduction="none", delta=self.delta).sum(1)
        return {"loss": (values * (known.counts > 0)).mean()}

    # --- transitions

    @torch.no_grad()
    def embed_labels(self, ctx: TransitionContext) -> None:
        """Embed the labels from their co-occurrence in the training documents."""
        walks = netmf(co_occurrence(ctx.train_targets(), self.num_labels), self.window, self.walk_negatives)
        found = factorize(walks, self.vectors.shape[1], ctx.seed).to(self.vectors)
        # A label whose row is zero keeps its random vector.
        known = found.norm(dim=1, keepdim=True) > 0
        self.vectors.copy_(torch.where(known, self.vectors.shape[1] ** 0.5 * F.normalize(found, dim=1), self.vectors))
        self.is_embedded = True
        self.steps[0] = True

    @torch.no_grad()
    def memorize(self, ctx: TransitionContext) -> None:
        """Keep the embeddings and labels of all training documents."""
        known = ctx.train_targets().below(self.num_labels)
        found = self.memory.new_zeros(len(known), self.memory.shape[1])
        for features, batch in ctx.train_features():
            found[batch.rows] = self.embedded(features)
        self.memory.zero_()[: len(known)] = ctx.sum(found)
        self.memory_starts.fill_(len(known.indices))[: len(known) + 1] = known.indptr
        self.memory_labels.zero_()[: len(known.indices)] = known.indices
        self.is_memorized = True
        self.steps[1] = True

    # --- rankings

    def embedded(self, features: Features) -> Tensor:
        """Unit vectors f / |f|, (batch, embed)."""
        return F.normalize(self.network(features.pooled.float()).float(), dim=-1)

    def rank(self, features: Features, k: int) -> Ranking:
        with torch.autocast(features.pooled.device.type, enabled=False):  # as in `DenseHead`
            vectors = self.embedded(features)
            return top_labels(self.by_neighbours(vectors) if self.is_memorized else self.by_labels(vectors), k)

    def by_labels(self, vectors: Tensor) -> Tensor:
        """(1 + cos) / 2 of documents and labels, (batch, num_labels)."""
        return (1 + vectors @ F.normalize(self.vectors, dim=-1).T).clamp(0, 2) / 2

    def by_neighbours(self, vectors: Tensor) -> Tensor:
        """Share of each label among the nearest training documents, (batch, num_labels)."""
        near = (vectors @ self.memory.T).topk(min(self.neighbours, len(self.memory)), dim=1)  # (batch, k)
        weights = near.values.clamp_min(0)
        weights = weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        found = Targets(self.memory_starts, self.memory_labels).take(near.indices.flatten())
        documents = found.rows // near.indices.shape[1]
        shares = vectors.new_zeros(len(vectors), self.num_labels)
        shares.index_put_((documents, found.indices), weights.flatten()[found.rows], accumulate=True)
        return shares.clamp_max(1)


def netmf(counts: csr_array, window: int, negatives: int) -> Tensor:
    """log max(1, vol / (b T) sum_{r=1}^T (D^-1 A)^r D^-1) of a weighted graph, (labels, labels)."""
    degrees = np.asarray(counts.sum(axis=1)).ravel()
    inverse = 1 / np.maximum(degrees, 1)
    step = csr_array(counts.multiply(inverse[:, None])).astype(np.float32)
    power = np.diag(inverse).astype(np.float32)
    total = np.zeros_like(power)
    for _ in range(window):
        power = step @ power
        total += power
    scale = degrees.sum() / (negatives * window)
    return torch.from_numpy(np.log(np.maximum(scale * total, 1)))


def factorize(matrix: Tensor, width: int, seed: int) -> Tensor:
    """U_d sqrt(S_d) of the singular value decomposition, with zeros where it has lower rank, (labels, width)."""
    size = min(width, len(matrix))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, values, _ = torch.svd_lowrank(matrix, min(size + 10, len(matrix)), niter=ITERATIONS)
    return F.pad(left[:, :size] * values[:size].sqrt(), (0, width - size))
