"""Label trees as plain data: label features, balanced clusters, and the shape of the tree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from backbones.tfidf import unit_segments
from datamodules.batch import Targets
from zoo.core.cores import available_cores
from zoo.core.errors import UserError

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Draws = NDArray[np.float64]  # (nodes of a tree, 2), uniform random numbers
Nodes = TypeVar("Nodes", int, Ints, Tensor)

MIN_GAIN = 1e-4  # gain of the mean similarity to the centres below which a split has converged
MAX_ROUNDS = 20
NO_DIRECTION = 1e-4  # mean label vectors that are not longer are rounding errors, not centres
TOGETHER = 2**20  # a node with at most this many nonzeros is split together with all nodes below it, by level


def level_widths(num_labels: int, clusters: int | None, max_leaf: int, height: int, fanout: int) -> list[int]:
    """Number of nodes of each level above the labels, top first, without the root; all are powers of two.

    Algorithm 1 of You et al. 2019, "AttentionXML": keep the parents of the labels in a binary tree and, up to `height`
    levels in all, every log2(`fanout`)-th level above them.
    """
    if fanout.bit_count() != 1:
        raise UserError(f"`tree.fanout={fanout}` is not a power of two")
    if num_labels < 2:
        raise UserError(f"a label tree needs at least 2 labels, not {num_labels}")
    if clusters is None:
        fewest = -(-num_labels // max_leaf)
        clusters = max(2, min(2 ** (fewest - 1).bit_length(), 2 ** (num_labels.bit_length() - 1)))
    if not (2 <= clusters <= num_labels and clusters.bit_count() == 1):
        setting = f"`tree.clusters={clusters}`"
        raise UserError(f"{setting} is not a power of two from 2 to the number of labels, {num_labels}")
    widths = [clusters // fanout**level for level in range(height)]
    return [width for width in reversed(widths) if width > 1]


def ancestor(nodes: Nodes, deep: int, shallow: int) -> Nodes:
    """Ancestors, in the level with `shallow` nodes, of nodes of the level with `deep` nodes of a complete tree."""
    return nodes >> ((deep // shallow).bit_length() - 1)


def children(cluster_of: Ints | Tensor, num_clusters: int) -> Tensor:
    """Labels of each cluster, ascending, padded with -1, (num_clusters, largest size)."""
    clusters = torch.as_tensor(cluster_of)
    order = clusters.argsort(stable=True)
    clusters, counts = clusters[order], clusters.bincount(minlength=num_clusters)
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[clusters]
    table = torch.full((num_clusters, int(counts.max())), -1)
    table[clusters, place] = order
    return table


def pifa(features: csr_array, targets: Targets, num_labels: int) -> csr_array:
    """Positive instance feature aggregation: sum of the features of each label's documents, at unit length.

    Returns (num_labels, words); rows of labels without documents are empty.
    """
    labels = label_matrix(targets.to("cpu"), num_labels)
    sums = labels.T.tocsr() @ features
    return csr_array((unit_segments(sums.data, sums.indptr), sums.indices, sums.indptr), sums.shape)


def label_matrix(targets: Targets, num_labels: int) -> csr_array:
    """0/1 matrix (documents, num_labels) in single precision."""
    known = targets.below(num_labels)
    ones = np.ones(len(known.indices), np.float32)
    return csr_array((ones, known.indices.numpy(), known.indptr.numpy()), (len(known), num_labels))


def balanced_clusters(features: csr_array, depth: int, seed: int, threads: int | None = None) -> Ints:
    """Cluster of each label, from 0 to 2^depth - 1, by splitting the labels in half `depth` times with 2-means.

    Args:
        features: (labels, any), rows of unit length.
        depth: number of splits; cluster sizes differ by at most one.
        seed: seed of the two labels that each split starts from. The result does not depend on the threads.
        threads: number of threads. Default: the number of cores.
    """
    labels, width = features.shape
    if 2**depth > labels:
        raise ValueError(f"{labels} labels do not make {2**depth} clusters")
    draws = np.random.default_rng(seed).random((2**depth, 2))
    found: Ints = np.ones(labels, dtype=np.int64)  # node of each label
    waiting = [NodeGroup(np.array([1]), np.arange(labels), np.array([labels]), np.array([width]), compact(features))]
    with ThreadPoolExecutor(threads or available_cores()) as pool:
        while waiting and depth:
            left = pool.map(partial(divide, depth=depth, draws=draws, found=found), waiting)
            waiting = list(chain.from_iterable(left))
    found -= 2**depth
    return found


def compact(matrix: csr_array) -> csr_array:
    """The matrix in single precision, with 32-bit indices if possible: less memory to read."""
    kind = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
    indices, indptr = (one.astype(kind, copy=False) for one in (matrix.indices, matrix.indptr))
    return csr_array((matrix.data.astype(np.float32, copy=False), indices, indptr), matrix.shape)


@dataclass
class NodeGroup:
    """Nodes of one depth with their labels as rows of one block-diagonal matrix.

    Each node has columns of its own, for the words of its labels, so that one product serves all nodes.
    """

    nodes: Ints  # node numbers: the root is 1, the children of node j are 2j and 2j + 1
    labels: Ints  # labels of all nodes, concatenated, ascending within a node
    sizes: Ints  # (nodes,) number of labels, n or n + 1
    widths: Ints  # (nodes,) number of columns
    features: csr_array

    @property
    def place(self) -> Ints:
        """Index of the node of each label."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def part(self, rows: Ints, nodes: Ints, place: Ints, parents: Ints) -> NodeGroup:
        """Group of some rows: `place` is the index among the new `nodes`, which have the columns of their `parents`."""
        features, widths = self.features[rows], self.widths[parents]
        shift = (widths.cumsum() - widths) - (self.widths.cumsum() - self.widths)[parents]
        indices = features.indices
        if shift.any():
            indices = indices + np.repeat(shift[place].astype(indices.dtype), np.diff(features.indptr))
        matrix = csr_array((features.data, indices, features.indptr), (len(rows), widths.sum()))
        return NodeGroup(nodes, self.labels[rows], np.bincount(place), widths, matrix)

    def narrowed(self) -> NodeGroup:
        """The same group without empty columns."""
        used = np.zeros(self.widths.sum() + 1, dtype=bool)  # one more, since the ends of nodes are looked up
        used[self.features.indices] = True
        number = used.cumsum(dtype=self.features.indices.dtype) - used
        ends = number[self.widths.cumsum()].astype(np.int64)
        parts = self.features.data, number[self.features.indices], self.features.indptr
        return replace(self, widths=np.diff(ends, prepend=0), features=csr_array(parts, (len(self.labels), ends[-1])))

    def only(self, chosen: NDArray[np.bool_]) -> NodeGroup:
        """Group of the chosen nodes."""
        rows, place = np.flatnonzero(chosen[self.place]), chosen.cumsum()[self.place] - 1
        return self.part(rows, self.nodes[chosen], place[rows], np.flatnonzero(chosen))


def divide(group: NodeGroup, depth: int, draws: Draws, found: Ints) -> list[NodeGroup]:
    """Split nodes and write the node of each label to `found`.

    A small group is split down to `depth`. A large node is split once, and its two halves are returned.
    """
    while True:
        place, is_large = 2 * group.place + halves(group, draws), group.features.nnz > TOGETHER
        nodes: Ints = 2 * np.repeat(group.nodes, 2)
        nodes[1::2] += 1
        found[group.labels] = nodes[place]
        if nodes[0] >= 2**depth:
            return []
        if len(nodes) == 2 and is_large:
            sides = [np.flatnonzero(place == side) for side in (0, 1)]
            return [group.part(rows, nodes[i : i + 1], 0 * rows, np.array([0])) for i, rows in enumerate(sides)]
        rows = place.argsort(kind="stable")
        group = group.part(rows, nodes, place[rows], np.arange(len(nodes)) // 2).narrowed()


def halves(group: NodeGroup, draws: Draws) -> NDArray[np.bool_]:
    """Balanced 2-means in each node: True for labels of the right half, (labels,)."""
    found, rows = np.zeros(len(group.labels), dtype=bool), np.arange(len(group.labels))
    right = right_halves(group.features @ first_direction(group, draws[group.nodes]), group.sizes)
    sums = [group.features.T @ side.astype(np.float32) for side in (~right, right)]
    best = np.full(len(group.nodes), -np.inf)
    for _ in range(MAX_ROUNDS - 1):
        lengths = [np.sqrt(node_sums(np.square(one), group.widths)) for one in sums]
        similarity = (lengths[0] + lengths[1]) / group.sizes
        moving = similarity - best >= MIN_GAIN
        if 2 * moving.sum() <= len(moving):
            found[rows] = right  # drop converged nodes once they are half of all
            if not moving.any():
                return found
            columns, own = np.repeat(moving, group.widths), moving[group.place]
            rows, right = rows[own], right[own]
            sums, lengths = [one[columns] for one in sums], [one[moving] for one in lengths]
            similarity, group, moving = similarity[moving], group.only(moving), moving[moving]
        best = similarity
        before, right = right, right_halves(group.features @ direction(sums, lengths, group), group.sizes)
        right = np.where(moving[group.place], right, before)
        moved = np.flatnonzero(right != before)  # few after the first rounds: update the sums
        change = group.features[moved].T @ np.where(right[moved], 1, -1).astype(np.float32)
        sums[0] -= change
        sums[1] += change
    found[rows] = right
    return found


def direction(sums: list[Floats], lengths: list[NDArray[np.float64]], group: NodeGroup) -> Floats:
    """Right minus left centre of each node; centres are sums at unit length, or zero if there is no direction."""
    scales = [np.where(one > NO_DIRECTION * group.sizes, 1 / np.maximum(one, NO_DIRECTION), 0) for one in lengths]
    left, right = (np.repeat(one.astype(np.float32), group.widths) for one in scales)
    return sums[1] * right - sums[0] * left


def node_sums(values: Floats, widths: Ints) -> NDArray[np.float64]:
    """Sum over the columns of each node."""
    sums, some = np.zeros(len(widths)), widths > 0  # no columns if no label of the node has features
    if some.any():
        sums[some] = np.add.reduceat(values, (widths.cumsum() - widths)[some])
    return sums


def first_direction(group: NodeGroup, draws: Draws) -> Floats:
    """Difference of two random labels of each node."""
    one = (draws[:, 0] * group.sizes).astype(np.int64)
    other = (draws[:, 1] * (group.sizes - 1)).astype(np.int64)
    other += other >= one
    starts = group.sizes.cumsum() - group.sizes
    signs = np.repeat(np.array([-1, 1], dtype=np.float32), len(starts))
    difference: Floats = group.features[np.concatenate([starts + one, starts + other])].T @ signs
    return difference


def right_halves(leaning: Floats, sizes: Ints) -> NDArray[np.bool_]:
    """The half of each node's labels, rounded up, with the largest values; the last of ties."""
    is_label, half = np.arange(sizes.max()) < sizes[:, None], sizes[:, None] // 2
    table = np.full(is_label.shape, np.inf, dtype=np.float32)  # nodes with one label less are padded
    table[is_label] = leaning
    bound = np.take_along_axis(np.sort(table, axis=1), half - 1, axis=1)
    left, tied = table < bound, table == bound
    left |= tied & (tied.cumsum(axis=1) <= half - left.sum(axis=1, keepdims=True))
    return np.logical_not(left[is_label], dtype=np.bool_)
