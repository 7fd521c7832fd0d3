"""Probabilistic label trees (PLT): only labels of the most likely clusters are scored."""

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
from backbones.tfidf import tfidf
from datamodules.batch import LabelSpace, Targets
from heads.attention.attentionxml import check_hidden
from heads.attention.label_attention import attention
from heads.base import Head, Ranking, TransitionContext, top_candidates
from heads.loss_base import MakeLoss
from heads.losses import BCE
from heads.tree.candidates import AttentionLevel, Level
from heads.tree.label_tree import balanced_clusters, level_widths, pifa
from heads.tree.search import LabelTree, averaged, likely
from zoo.core.errors import MANY, WIDEST, UserError, check_low, check_range
from zoo.core.exporting import is_exporting


@dataclass(frozen=True)
class TreeSettings:
    """Shape and number of label trees.

    Args:
        clusters: number of clusters at the lowest level, a power of two. Default: the fewest for `max_leaf`.
        max_leaf: largest number of labels in a cluster (M). Default: 100.
        height: levels of clusters (H).
        fanout: children of a cluster, a power of two (K); the root may have a different number.
        count: number of trees with different clusters, whose probabilities are averaged.
    """

    clusters: int | None = None
    max_leaf: int | None = None
    height: int = 1
    fanout: int = 8
    count: int = 1

    def __post_init__(self) -> None:
        check_range(2, WIDEST, **{"tree.fanout": self.fanout})
        check_range(1, MANY, **{"tree.height": self.height, "tree.count": self.count})
        check_low(2, **{"tree.clusters": self.clusters})
        check_low(1, **{"tree.max_leaf": self.max_leaf})


class TreeHead(Head):
    """Base class of tree heads; implement `make_level`, and call `add_trees` at the end of `__init__`.

    P(label) is the product of the conditional probabilities on the path from the root. By default all levels are
    trained jointly, with negatives from the current scores of the levels above. After `start_levels` only the highest
    level is trained, and after each `start_next_level` the next one, with the levels above frozen.

    Args:
        tree: shape of the tree.
        beam: number of nodes per level whose children are candidates.
        cluster_weight: weight of the losses of clusters, relative to that of labels.
        path_weight: exponent of the clusters' probabilities in that of a label; 0 ranks by the label's own.
        sparse_above: levels with more nodes have sparse gradients, which need an optimizer such as `RowAdam`.
        loss: loss of the labels, see `heads.losses`. Default: binary cross-entropy, which clusters always have.
    """

    level: Tensor  # () level that is trained, from 0; -1 for all
    grown: Tensor  # () bool, `build_tree` has run

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        tree: TreeSettings | None = None,
        beam: int = 16,
        cluster_weight: float = 1.0,
        path_weight: float = 1.0,
        sparse_above: int = 100_000,
        loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(dim, space)
        self.criterion, self.use_idf = (loss or BCE)(space), space.idf
        self.shape = shape = tree or TreeSettings()
        check_low(1, beam=beam)
        check_low(0, cluster_weight=cluster_weight, path_weight=path_weight, sparse_above=sparse_above)
        self.beam, self.cluster_weight, self.sparse_above = beam, cluster_weight, sparse_above
        self.path_weight = path_weight
        if None not in (shape.clusters, shape.max_leaf):
            raise UserError(
                "give either `tree.clusters` or `tree.max_leaf`: "
                f"`tree={{clusters: null, max_leaf: {shape.max_leaf}}}` selects the latter"
            )
        most = 100 if shape.max_leaf is None else shape.max_leaf
        self.widths = level_widths(space.num_labels, shape.clusters, most, shape.height, shape.fanout)
        self.register_buffer("level", torch.tensor(-1))
        self.register_buffer("grown", torch.tensor(False))

    @abstractmethod
    def make_level(self, nodes: int, depth: int) -> Level:
        """Build the level of this depth, from 0."""

    def add_trees(self) -> None:
        """Build the trees; call it once everything that `make_level` uses is set."""
        self.trees = nn.ModuleList(
            LabelTree(self.widths, self.num_labels, self.make_level, self.path_weight) for _ in range(self.shape.count)
        )

    def sparse(self, nodes: int) -> bool:
        return nodes > self.sparse_above

    @property
    def pending(self) -> tuple[str, ...]:
        ready = bool(self.grown) and all(tree.whole for tree in self._trees())
        return () if ready else ("build_tree",)

    def check_indices(self) -> None:
        if not -1 <= int(self.level) <= len(self.widths):
            raise UserError(f"the checkpoint trains level {int(self.level)} of its label tree, which does not exist")

    def check_plan(self, transitions: Sequence[str]) -> None:
        begun, later = int(self.level) >= 0 or "start_levels" in transitions, transitions.count("start_next_level")
        if later and not begun:
            raise UserError("a stage has start_next_level in on_enter, but no earlier stage has start_levels")
        left = len(self.widths) - (0 if "start_levels" in transitions else max(int(self.level), 0))
        if begun and later != left:
            raise UserError(
                f"the tree has {len(self.widths)} levels of clusters above the labels: {left} of the remaining stages "
                f"must have start_next_level in on_enter, but {later} have it"
            )

    def build_tree(self, ctx: TransitionContext) -> None:
        """Cluster the labels by the TF-IDF features of their documents."""
        labels = None
        for number, tree in enumerate(ctx.track(self._trees(), "clustering labels")):
            if ctx.first:
                if labels is None:
                    labels = pifa(tfidf(ctx.train_words(), self.use_idf), ctx.train_targets(), self.num_labels)
                clusters = balanced_clusters(labels, int(log2(self.widths[-1])), seed=ctx.seed * 1000 + number)
                tree.plant(torch.from_numpy(clusters))
        self.grown.fill_(True)

    def start_levels(self, ctx: TransitionContext) -> None:
        """Train only the highest level from now on."""
        self._start(0, ctx)

    def start_next_level(self, ctx: TransitionContext) -> None:
        """Train only the next level from now on, with the shared layers initialized from the level above."""
        level = int(self.level) + 1
        for tree in self._trees():
            above = {n: v for n, v in tree.level(level - 1).state_dict().items() if not n.startswith("table.")}
            tree.level(level).load_state_dict(above, strict=False)
        self._start(level, ctx)

    def _start(self, level: int, ctx: TransitionContext) -> None:
        if isinstance(ctx.backbone, PerLevel):
            if self.needs_layers <= len(self.widths):
                raise UserError("PerLevel has an encoder for each level: set `layer_per_level=True`")
            ctx.backbone.begin(level)
        self.level.fill_(level)

    def _trees(self) -> list[LabelTree]:
        return [tree for tree in self.trees if isinstance(tree, LabelTree)]

    @property
    def _trained(self) -> int:
        """Number of levels that have been trained or are being trained."""
        if is_exporting():  # a graph cannot read the buffer; only trained trees are exported
            return len(self.widths) + 1
        level = int(self.level)
        return len(self.widths) + 1 if level < 0 else level + 1

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        known, level = targets.below(self.num_labels), int(self.level)
        trees = self._trees()
        only = None if level < 0 else level
        losses = [tree.losses(features, known, self.beam, only, self.criterion) for tree in trees]
        by_level = [sum(parts) / (len(trees) * len(targets)) for parts in zip(*losses, strict=True)]
        if level >= 0:
            return {"loss": by_level[0]}
        clusters, labels = sum(by_level[:-1]), by_level[-1]
        return {"loss": self.cluster_weight * clusters + labels, "clusters": clusters, "labels": labels}

    def rank(self, features: Features, k: int) -> Ranking:
        found = self._search(features)
        labels, path = found[0] if len(found) == 1 else averaged(found)
        labels, by_label = labels.sort(dim=1)  # ties go to the more frequent label
        best = top_candidates(path.gather(1, by_label), labels, k)
        return Ranking(best.scores.exp() * (best.labels >= 0), best.labels)

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        """Recall of the beam, at the lowest trained level, of a document's clusters and labels."""
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
        """Search results of each tree, in single precision: half precision makes ties."""
        with torch.autocast(features.pooled.device.type, enabled=False):
            return [tree.search(features.float(), self.beam, self._trained, to) for tree in self._trees()]


class PLT(TreeHead):
    """LightAttention, and AttentionXML with its tree: label attention over the candidates of a shallow, wide tree.

    Trained jointly, it is LightAttention ("Multi-Label text classification (MTC)", a report by Zhu, Teng and Huang):
    the clusters are LightXML's generator, whose negatives change with the model, and the labels its discriminator
    (Eq. 2 is the attention). The report has no hyper-parameters; those of the experiments are ours.

    Trained level by level, it is AttentionXML (You et al. 2019, https://arxiv.org/abs/1811.01727), best with an encoder
    per level (`PerLevel`). Changes to its official code: candidates are found on the fly, all positive nodes are
    candidates even if they exceed the beam, and padding candidates have no loss.

    Args:
        hidden: widths of the hidden layers that the nodes of a level share, such as [256] or [512, 256].
        layer_per_level: level d reads layer d of the backbone, such as the d-th encoder of `PerLevel`. Default: all
            levels read the last layer.
        common: arguments of `TreeHead`.
    """

    needs_tokens = True

    def __init__(
        self, dim: int, space: LabelSpace, hidden: Sequence[int] = (256,), layer_per_level: bool = False, **common: Any
    ) -> None:
        super().__init__(dim, space, **common)
        check_hidden(hidden)
        self.hidden, self.layer_per_level = list(hidden), layer_per_level
        self.needs_layers = len(self.widths) + 1 if layer_per_level else 1
        self.add_trees()

    def attention_weights(self, features: Features, labels: Tensor) -> Tensor:
        """Attention of the labels, not of clusters; the mean over trees."""
        levels = [tree.level(tree.last) for tree in self._trees()]
        states = features.states(len(self.widths) + 1 if self.layer_per_level else -1)
        return torch.stack([attention(level.table.weight[labels], states, features.mask) for level in levels]).mean(0)

    def make_level(self, nodes: int, depth: int) -> Level:
        layer = depth + 1 if self.layer_per_level else -1
        return AttentionLevel(self.dim, nodes, self.hidden, layer, self.sparse(nodes))
