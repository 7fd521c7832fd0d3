"""A label tree: candidates from level to level, in training and in beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Features
from datamodules.batch import Targets
from heads.loss_base import Loss
from heads.tree.candidates import Level
from heads.tree.label_tree import ancestor, children
from zoo.core.errors import UserError

LEAST = -1e30  # finite lower bound of log-probabilities, since 0 * -inf is NaN


class LabelTree(nn.Module):
    """One tree: clusters as plain arrays, and a `Level` of scorers for each depth, the labels last.

    Args:
        widths: number of nodes of each level of clusters.
        num_labels: number of leaves.
        make_level: builds a level from its number of nodes and its depth, from 0.
        path_weight: exponent of the ancestors' probabilities.
    """

    cluster_of: Tensor  # (num_labels,) cluster at the lowest level; `ancestor` gives those above
    labels_of: Tensor  # (clusters, largest size) labels of each, ascending, padded with -1

    def __init__(
        self, widths: Sequence[int], num_labels: int, make_level: Callable[[int, int], Level], path_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.widths, self.path_weight = [*widths, num_labels], path_weight
        self.levels = nn.ModuleList(make_level(nodes, depth) for depth, nodes in enumerate(self.widths))
        clusters = torch.arange(num_labels) * widths[-1] // num_labels  # by frequency, until `build_tree`
        self.register_buffer("cluster_of", clusters)
        self.register_buffer("labels_of", children(clusters, widths[-1]))

    @property
    def last(self) -> int:
        return len(self.levels) - 1

    def level(self, depth: int) -> Level:
        level = self.levels[depth]
        assert isinstance(level, Level)
        return level

    def plant(self, cluster_of: Tensor) -> None:
        """Set the clusters."""
        self.cluster_of.copy_(cluster_of)
        self.labels_of.copy_(children(cluster_of, self.widths[-2]))

    def nodes_of(self, labels: Tensor, depth: int) -> Tensor:
        """Nodes of a level that contain the labels."""
        return labels if depth == self.last else ancestor(self.cluster_of[labels], self.widths[-2], self.widths[depth])

    def truth(self, targets: Targets, depth: int) -> Tensor:
        """Positive (document, node) pairs as sorted codes; a node is positive if one of its labels is."""
        return (targets.rows * self.widths[depth] + self.nodes_of(targets.indices, depth)).sort().values

    @property
    def whole(self) -> bool:
        """Whether both arrays are consistent, which they are not after loading a tree of another shape."""
        most, clusters = self.labels_of.shape[1], self.widths[-2]
        if int(self.cluster_of.min()) < 0 or int(self.cluster_of.max()) >= clusters:
            return False
        if int(self.cluster_of.bincount().max()) > most:
            return False
        return torch.equal(children(self.cluster_of.cpu(), clusters), self.labels_of.cpu())

    def check_indices(self) -> None:
        if not self.whole:
            raise UserError("the label tree of the checkpoint is damaged: its clusters do not fit its labels")

    def is_true(self, nodes: Tensor, truth: Tensor, depth: int) -> Tensor:
        """Whether each of the nodes (docs, n) is positive for its document."""
        if not len(truth):
            return torch.zeros_like(nodes, dtype=torch.bool)
        pairs = nodes + torch.arange(len(nodes), device=nodes.device).unsqueeze(1) * self.widths[depth]
        place = torch.searchsorted(truth, pairs).clamp_max(len(truth) - 1)
        return (truth[place] == pairs) & (nodes >= 0)

    def all_nodes(self, docs: int, depth: int) -> Tensor:
        return torch.arange(self.widths[depth], device=self.cluster_of.device).expand(docs, -1)

    def root(self) -> Tensor:
        """Log-probability of the root, 0."""
        return torch.zeros(1, 1, device=self.cluster_of.device)

    def below(self, nodes: Tensor, path: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Children of nodes (docs, n), -1 for padding, and their parents' log-probabilities, (docs, any)."""
        if depth + 1 == self.last:
            found = self.labels_of[nodes.clamp_min(0)]
        else:
            fanout = self.widths[depth + 1] // self.widths[depth]
            found = nodes.unsqueeze(-1) * fanout + torch.arange(fanout, device=nodes.device)
        found = found.where(nodes.unsqueeze(-1) >= 0, -1)
        return found.flatten(1), path.unsqueeze(-1).expand(found.shape).flatten(1)

    def joined(self, above: Tensor, logits: Tensor) -> Tensor:
        """Log-probabilities of nodes from those of their parents and their own logits; finite on padding too."""
        return self.path_weight * above.clamp_min(LEAST) + F.logsigmoid(logits)

    def losses(
        self, features: Features, targets: Targets, beam: int, only: int | None, criterion: Loss | None = None
    ) -> list[Tensor]:
        """Loss of each level, or of level `only`, summed over candidates and documents.

        Clusters are trained with binary cross-entropy, since the search needs their probabilities; labels with
        `criterion`, if given. Candidates are the children of all positive nodes of the level above and of those with
        the highest current scores.
        """
        nodes, path = self.all_nodes(len(targets), 0), self.root()
        losses = []
        of_labels = () if criterion is None else (criterion, criterion.document_values(targets))
        for depth in range(self.last + 1 if only is None else only + 1):
            level, true = self.level(depth), self.is_true(nodes, self.truth(targets, depth), depth)
            some = nodes if depth else None
            if only is None or depth == only:
                loss, logits = level.loss(features, some, true, nodes >= 0, *(of_labels if depth == self.last else ()))
                losses.append(loss)
            else:
                logits = level.logits(features, some)
            if depth < self.last:
                nodes, kept = likely(nodes, self.joined(path, logits), beam, true)
                nodes, path = self.below(nodes, kept, depth)
        return losses

    def search(self, features: Features, beam: int, trained: int, to: int | None = None) -> tuple[Tensor, Tensor]:
        """Candidates (docs, n) of the last level, or of level `to`, and log-probabilities; padded with -1 and -inf.

        Children in levels that are not trained yet, from `trained` on, are as likely as their parent.
        """
        nodes, path = self.all_nodes(features.mask.shape[0], 0), self.root()
        for depth in range(self.last + 1 if to is None else to + 1):
            if depth < trained:
                path = self.joined(path, self.level(depth).logits(features, nodes if depth else None))
            path = path.expand(nodes.shape).masked_fill(nodes < 0, -torch.inf)
            if depth != to and depth < self.last:
                nodes, path = self.below(*likely(nodes, path, beam), depth)
        return nodes, path


def likely(nodes: Tensor, path: Tensor, beam: int, true: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The `beam` nodes with the highest log-probabilities, and these; padded with -1 and -inf.

    If `true` is given, all positive nodes come first, even if they exceed the beam.
    """
    score = path.masked_fill(nodes < 0, -torch.inf)
    room = torch.full((nodes.shape[0], 1), beam, device=nodes.device)
    if true is not None:
        score = score.masked_fill(true, torch.inf)
        room = true.sum(1, keepdim=True).clamp_min(beam)
    size = min(beam if true is None else int(room.max()), nodes.shape[1])
    best = score.topk(size, dim=1)
    kept = (best.values > -torch.inf) & (torch.arange(size, device=nodes.device) < room)
    return nodes.gather(1, best.indices).where(kept, -1), path.gather(1, best.indices).where(kept, -torch.inf)


def averaged(found: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Distinct labels of several trees, and the log of their mean probability, which is 0 where a tree lacks them."""
    labels, order = torch.cat([labels for labels, _ in found], dim=1).sort(dim=1)
    path = torch.cat([path for _, path in found], dim=1).gather(1, order)
    best = path.amax(1, keepdim=True)  # subtracted before exp(), against underflow
    place = F.pad(labels[:, 1:] != labels[:, :-1], (1, 0)).cumsum(1)  # the same for the same label
    total = torch.zeros_like(path).scatter_add_(1, place, (path - best).exp())
    return torch.full_like(labels, -1).scatter_(1, place, labels), (total / len(found)).log() + best
