"""Probabilistic label trees: a document's labels are looked for among the children of its likely clusters alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import torch
from torch import Tensor, nn

from backbones.base import Features
from backbones.per_level import PerLevel
from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads.base import Head, Ranking, TransitionContext, check_low, top_labels
from heads.candidates import AttentionLevel, Level
from heads.label_attention import attention
from heads.label_tree import balanced_clusters, level_widths, pifa, tfidf
from heads.tree_search import LabelTree, averaged, likely


@dataclass(frozen=True)
class TreeSettings:
    """The shape of a label tree, and how many of them.

    Args:
        clusters: of labels at the lowest level, a power of two; the fewest for `max_leaf` where this is not given.
        max_leaf: labels in a cluster at most (M), if there are enough of them; 100 where nothing is said.
        height: levels of clusters (H).
        fanout: clusters under one of the level above, a power of two (K); the highest level has what is left.
        count: trees, each with clusters of its own; their probabilities are averaged.
    """

    clusters: int | None = None
    max_leaf: int | None = None
    height: int = 1
    fanout: int = 8
    count: int = 1


class TreeHead(Head):
    """Labels by way of trees; a new one says what scores the nodes of a level, `make_level`, and calls `add_trees`.

    P(label) is the product of the conditional probabilities on the path from the root. All levels are trained at
    once, on negatives that the levels above generate as they are now. After `start_levels` only the highest is
    trained, after each `start_next_level` the next one, on candidates of levels that stay as they are.

    Args:
        tree: its shape.
        beam: nodes of a level whose children are candidates.
        cluster_weight: of the losses of clusters beside that of labels.
        path_weight: exponent of the clusters' probabilities in that of a label; 0 leaves them out of it.
        sparse_above: levels with more nodes than this have gradients for the rows of candidates alone, which an
            optimizer such as `RowAdam` takes.
    """

    level: Tensor  # the one that is trained now, from 0; -1 for all of them
    grown: Tensor  # whether `build_tree` has run

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        tree: TreeSettings | None = None,
        beam: int = 16,
        cluster_weight: float = 1.0,
        path_weight: float = 1.0,
        sparse_above: int = 100_000,
    ) -> None:
        super().__init__(dim, space)
        self.shape = shape = tree or TreeSettings()
        check_low(1, beam=beam)
        check_low(1, **{"tree.count": shape.count})
        check_low(0, cluster_weight=cluster_weight, path_weight=path_weight, sparse_above=sparse_above)
        self.beam, self.cluster_weight, self.sparse_above = beam, cluster_weight, sparse_above
        self.path_weight = path_weight
        if None not in (shape.clusters, shape.max_leaf):
            raise UserError(
                "a tree has either `clusters` or `max_leaf`: "
                f"--model.head.tree='{{clusters: null, max_leaf: {shape.max_leaf}}}' takes the latter"
            )
        most = 100 if shape.max_leaf is None else shape.max_leaf
        self.widths = level_widths(space.num_labels, shape.clusters, most, shape.height, shape.fanout)
        self.register_buffer("level", torch.tensor(-1))
        self.register_buffer("grown", torch.tensor(False))

    @abstractmethod
    def make_level(self, nodes: int, depth: int) -> Level:
        """What scores so many nodes of the level of this number, from 0."""

    def add_trees(self) -> None:
        """To be called once all that `make_level` uses is there."""
        self.trees = nn.ModuleList(
            LabelTree(self.widths, self.num_labels, self.make_level, self.path_weight) for _ in range(self.shape.count)
        )

    def sparse(self, nodes: int) -> bool:
        return nodes > self.sparse_above

    @property
    def pending(self) -> tuple[str, ...]:
        ready = bool(self.grown) and all(tree.whole for tree in self._trees())
        return () if ready else ("build_tree",)

    def check_plan(self, transitions: Sequence[str]) -> None:
        begun, later = int(self.level) >= 0 or "start_levels" in transitions, transitions.count("start_next_level")
        if later and not begun:
            raise UserError("a stage has `start_next_level`, and none before it has `start_levels` in `on_enter`")
        left = len(self.widths) - (0 if "start_levels" in transitions else max(int(self.level), 0))
        if begun and later != left:
            raise UserError(
                f"the tree has {len(self.widths)} levels of clusters above the labels: {left} of the stages to come "
                f"must have `start_next_level` in `on_enter`, and {later} have it"
            )

    def build_tree(self, ctx: TransitionContext) -> None:
        """Cluster the labels by the words of their documents."""
        labels = None
        for number, tree in enumerate(ctx.track(self._trees(), "clustering labels")):
            if ctx.first:
                if labels is None:
                    labels = pifa(tfidf(ctx.train_words()), ctx.train_targets(), self.num_labels)
                clusters = balanced_clusters(labels, int(log2(self.widths[-1])), seed=ctx.seed * 1000 + number)
                tree.plant(torch.from_numpy(clusters))
        self.grown.fill_(True)

    def start_levels(self, ctx: TransitionContext) -> None:
        """From now on only the highest level is trained."""
        self._start(0, ctx)

    def start_next_level(self, ctx: TransitionContext) -> None:
        """From now on only the next level is trained, which starts from what the one above shares among its nodes."""
        level = int(self.level) + 1
        for tree in self._trees():
            above = {n: v for n, v in tree.level(level - 1).state_dict().items() if not n.startswith("table.")}
            tree.level(level).load_state_dict(above, strict=False)
        self._start(level, ctx)

    def _start(self, level: int, ctx: TransitionContext) -> None:
        if isinstance(ctx.backbone, PerLevel):
            if self.needs_layers <= len(self.widths):
                raise UserError("PerLevel has an encoder for each level: set --model.head.layer_per_level=true")
            ctx.backbone.begin(level)
        self.level.fill_(level)

    def _trees(self) -> list[LabelTree]:
        return list(self.trees)  # type: ignore[arg-type]

    @property
    def _trained(self) -> int:
        """Levels that have been trained, or are now."""
        level = int(self.level)
        return len(self.widths) + 1 if level < 0 else level + 1

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        known, level = targets.below(self.num_labels), int(self.level)
        trees = self._trees()
        losses = [tree.losses(features, known, self.beam, None if level < 0 else level) for tree in trees]
        by_level = [sum(parts) / (len(trees) * len(targets)) for parts in zip(*losses, strict=True)]
        if level >= 0:
            return {"loss": by_level[0]}
        clusters, labels = sum(by_level[:-1]), by_level[-1]
        return {"loss": self.cluster_weight * clusters + labels, "clusters": clusters, "labels": labels}

    def rank(self, features: Features, k: int) -> Ranking:
        found = self._search(features)
        labels, path = found[0] if len(found) == 1 else averaged(found)
        labels, by_label = labels.sort(dim=1)  # of equally likely ones the more frequent goes first
        best = top_labels(path.gather(1, by_label), k)
        known = (best.labels >= 0) & (best.scores > -torch.inf)
        labels = labels.gather(1, best.labels.clamp_min(0)).where(known, -1)
        return Ranking(best.scores.exp() * known, labels)

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        """Of a document's clusters, and of its labels, the share that the beam finds at the lowest trained level."""
        known, lowest = targets.below(self.num_labels), min(self._trained, len(self.widths)) - 1
        clusters, labels = [], []
        for tree, found in zip(self._trees(), self._search(features, to=lowest), strict=True):
            nodes, path = likely(*found, self.beam)
            truth = torch.unique(tree.truth(known, lowest))
            hits = tree.is_true(nodes, truth, lowest).sum(1)
            clusters.append(hits / (truth // tree.widths[lowest]).bincount(minlength=len(targets)))
            hit = (nodes[known.rows] == tree.nodes_of(known.indices, lowest).unsqueeze(1)).any(1)
            labels.append(torch.zeros_like(path[:, 0]).index_add_(0, known.rows, hit.float()) / known.counts)
        return {"clusters@beam": torch.stack(clusters).mean(0), "labels@beam": torch.stack(labels).mean(0)}

    def _search(self, features: Features, to: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """What each tree finds, in single precision: half of it makes ties."""
        with torch.autocast(features.pooled.device.type, enabled=False):
            return [tree.search(features.float(), self.beam, self._trained, to) for tree in self._trees()]


class PLT(TreeHead):
    """Label attention over candidates alone, level by level of a shallow, wide label tree.

    Trained all at once it is LightAttention: clusters generate the negatives of their labels, which change as the
    model does. Trained level by level it is AttentionXML (You et al. 2019), best with an encoder for each (`PerLevel`).

    Args:
        hidden: widths of the layers that all nodes of a level share, before the last; [256] or [512, 256].
        layer_per_level: level d reads layer d of the backbone, such as `PerLevel`'s d-th encoder; all of them read
            the last by default.
        common: settings of every `TreeHead`.
    """

    needs_tokens = True

    def __init__(
        self, dim: int, space: LabelSpace, hidden: Sequence[int] = (256,), layer_per_level: bool = False, **common: Any
    ) -> None:
        super().__init__(dim, space, **common)
        if not hidden:
            raise UserError("--model.head.hidden=[]: give the width of at least one layer")
        check_low(1, hidden=min(hidden))
        self.hidden, self.layer_per_level = list(hidden), layer_per_level
        self.needs_layers = len(self.widths) + 1 if layer_per_level else 1
        self.add_trees()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor:
        """Of labels themselves, not of their clusters; of several trees the mean."""
        levels = [tree.level(tree.last) for tree in self._trees()]
        states = features.states(len(self.widths) + 1 if self.layer_per_level else -1)
        return torch.stack([attention(level.table.weight[labels], states, features.mask) for level in levels]).mean(0)

    def make_level(self, nodes: int, depth: int) -> Level:
        layer = depth + 1 if self.layer_per_level else -1
        return AttentionLevel(self.dim, nodes, self.hidden, layer, self.sparse(nodes))
