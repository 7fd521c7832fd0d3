"""Label trees as plain data: TF-IDF, features of labels, balanced clusters of them, and the levels above."""

from __future__ import annotations

import os
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

from datamodules.batch import Targets
from datamodules.errors import UserError
from heads.base import check_low

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Draws = NDArray[np.float64]  # (all nodes of a tree, 2), from 0 to 1
Nodes = TypeVar("Nodes", int, Ints, Tensor)

MIN_GAIN = 1e-4  # of the mean similarity of labels to their centre, below which a split is settled
MAX_ROUNDS = 20
NO_DIRECTION = 1e-4  # length of a mean of labels at or below which it is rounding errors, and no centre
TOGETHER = 2**20  # nonzeros of a node, from which on down it and all nodes below it are split level by level


def level_widths(num_labels: int, clusters: int | None, max_leaf: int, height: int, fanout: int) -> list[int]:
    """Nodes of each level above the labels, top first and without the root; all are powers of two.

    Algorithm 1 of You et al. 2019, "AttentionXML": of a binary tree, the parents of the labels and then, `height`
    levels in all, every level that is log2(`fanout`) further up.
    """
    check_low(1, **{"tree.max_leaf": max_leaf, "tree.height": height})
    check_low(2, **{"tree.fanout": fanout})
    if fanout.bit_count() != 1:
        raise UserError(f"--model.head.tree.fanout={fanout} is not a power of two")
    if num_labels < 2:
        raise UserError(f"a label tree takes at least 2 labels, not {num_labels}")
    if clusters is None:
        fewest = -(-num_labels // max_leaf)
        clusters = max(2, min(2 ** (fewest - 1).bit_length(), 2 ** (num_labels.bit_length() - 1)))
    if not (2 <= clusters <= num_labels and clusters.bit_count() == 1):
        setting = f"--model.head.tree.clusters={clusters}"
        raise UserError(f"{setting} is not a power of two from 2 to {num_labels}, the labels")
    widths = [clusters // fanout**level for level in range(height)]
    return [width for width in reversed(widths) if width > 1]


def ancestor(nodes: Nodes, deep: int, shallow: int) -> Nodes:
    """Nodes of a level with `deep` nodes as those above them in the level with `shallow`: the tree is complete."""
    return nodes >> ((deep // shallow).bit_length() - 1)


def children(cluster_of: Ints | Tensor, num_clusters: int) -> Tensor:
    """Labels of each cluster, ascending and filled with -1, (num_clusters, most)."""
    clusters = torch.as_tensor(cluster_of)
    order = clusters.argsort(stable=True)
    clusters, counts = clusters[order], clusters.bincount(minlength=num_clusters)
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[clusters]
    table = torch.full((num_clusters, int(counts.max())), -1)
    table[clusters, place] = order
    return table


def tfidf(counts: csr_array) -> csr_array:
    """(1 + log tf) * idf of documents' token counts, rows of unit length; shares the places of its nonzeros."""
    documents, words = counts.shape
    idf = np.log((1 + documents) / (1 + np.bincount(counts.indices, minlength=words))) + 1
    weights = np.log(counts.data, dtype=np.float32)
    weights += 1
    weights *= idf.astype(np.float32)[counts.indices]
    return unit_rows(csr_array((weights, counts.indices, counts.indptr), counts.shape))


def pifa(features: csr_array, targets: Targets, num_labels: int) -> csr_array:
    """Features of labels, (num_labels, words): the sums of their documents', of unit length where there are any."""
    known = targets.to("cpu").below(num_labels)
    ones = np.ones(len(known.indices), dtype=np.float32)
    by_document = csr_array((ones, known.indices.numpy(), known.indptr.numpy()), (len(known), num_labels))
    return unit_rows(by_document.T.tocsr() @ features)


def unit_rows(matrix: csr_array) -> csr_array:
    """The same matrix with its rows scaled, in place, to unit length; empty ones stay."""
    squares = csr_array((np.square(matrix.data), matrix.indices, matrix.indptr), matrix.shape)
    lengths = np.sqrt(squares @ np.ones(matrix.shape[1], dtype=np.float32))
    lengths[lengths == 0] = 1
    matrix.data /= np.repeat(lengths, np.diff(matrix.indptr))
    return matrix


def balanced_clusters(features: csr_array, depth: int, seed: int, threads: int | None = None) -> Ints:
    """Cluster of each label, from 0 to 2^depth - 1, by halving the labels `depth` times with balanced 2-means.

    Args:
        features: (labels, any), rows of unit length.
        depth: halvings; sizes of clusters differ by one at most.
        seed: of the two labels that each halving starts from; the number of threads changes nothing.
        threads: by default as many as there are cores.
    """
    labels, width = features.shape
    if 2**depth > labels:
        raise ValueError(f"{labels} labels do not make {2**depth} clusters")
    draws = np.random.default_rng(seed).random((2**depth, 2))  # for each node
    found: Ints = np.ones(labels, dtype=np.int64)  # the node of each
    waiting = [Group(np.array([1]), np.arange(labels), np.array([labels]), np.array([width]), compact(features))]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        while waiting and depth:
            left = pool.map(partial(divide, depth=depth, draws=draws, found=found), waiting)
            waiting = list(chain.from_iterable(left))
    found -= 2**depth
    return found


def compact(matrix: csr_array) -> csr_array:
    """The same matrix in single precision and, where they suffice, with places of 32 bits: less to read."""
    places = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
    indices, indptr = (one.astype(places, copy=False) for one in (matrix.indices, matrix.indptr))
    return csr_array((matrix.data.astype(np.float32, copy=False), indices, indptr), matrix.shape)


@dataclass
class Group:
    """Nodes of one depth, whose labels are rows of one matrix.

    Each node has columns of its own there, for words that its labels have: one product serves all nodes of the group.
    """

    nodes: Ints  # their numbers: the root is 1, and below node j are 2j and 2j + 1
    labels: Ints  # of all nodes, one after the other, ascending in each
    sizes: Ints  # (nodes,) labels of each, n or n + 1
    widths: Ints  # (nodes,) columns of each
    features: csr_array

    @property
    def place(self) -> Ints:
        """Of each label: which of the nodes it is in."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def part(self, rows: Ints, nodes: Ints, place: Ints, parents: Ints) -> Group:
        """A group of some rows: `place` of each among the new `nodes`, each with the columns of one of `parents`."""
        features, widths = self.features[rows], self.widths[parents]
        shift = (widths.cumsum() - widths) - (self.widths.cumsum() - self.widths)[parents]
        indices = features.indices
        if shift.any():
            indices = indices + np.repeat(shift[place].astype(indices.dtype), np.diff(features.indptr))
        matrix = csr_array((features.data, indices, features.indptr), (len(rows), widths.sum()))
        return Group(nodes, self.labels[rows], np.bincount(place), widths, matrix)

    def narrowed(self) -> Group:
        """The same group without the columns that are empty."""
        used = np.zeros(self.widths.sum() + 1, dtype=bool)  # one more: where each node ends is looked up
        used[self.features.indices] = True
        number = used.cumsum(dtype=self.features.indices.dtype) - used
        ends = number[self.widths.cumsum()].astype(np.int64)
        parts = self.features.data, number[self.features.indices], self.features.indptr
        return replace(self, widths=np.diff(ends, prepend=0), features=csr_array(parts, (len(self.labels), ends[-1])))

    def only(self, chosen: NDArray[np.bool_]) -> Group:
        """The group of some of its nodes."""
        rows, place = np.flatnonzero(chosen[self.place]), chosen.cumsum()[self.place] - 1
        return self.part(rows, self.nodes[chosen], place[rows], np.flatnonzero(chosen))


def divide(group: Group, depth: int, draws: Draws, found: Ints) -> list[Group]:
    """Put the nodes of labels into `found`: the two halves of a large node, which are returned, or all below it."""
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


def halves(group: Group, draws: Draws) -> NDArray[np.bool_]:
    """Balanced 2-means in each node: which labels go right, (labels,)."""
    found, rows = np.zeros(len(group.labels), dtype=bool), np.arange(len(group.labels))
    right = right_halves(group.features @ first_direction(group, draws[group.nodes]), group.sizes)
    sums = [group.features.T @ side.astype(np.float32) for side in (~right, right)]
    best = np.full(len(group.nodes), -np.inf)
    for _ in range(MAX_ROUNDS - 1):
        lengths = [np.sqrt(node_sums(np.square(one), group.widths)) for one in sums]
        similarity = (lengths[0] + lengths[1]) / group.sizes
        moving = similarity - best >= MIN_GAIN
        if 2 * moving.sum() <= len(moving):
            found[rows] = right  # settled nodes are left behind once they are half of all
            if not moving.any():
                return found
            columns, own = np.repeat(moving, group.widths), moving[group.place]
            rows, right = rows[own], right[own]
            sums, lengths = [one[columns] for one in sums], [one[moving] for one in lengths]
            similarity, group, moving = similarity[moving], group.only(moving), moving[moving]
        best = similarity
        before, right = right, right_halves(group.features @ direction(sums, lengths, group), group.sizes)
        right = np.where(moving[group.place], right, before)
        moved = np.flatnonzero(right != before)  # few after the first rounds: cheaper than new sums
        change = group.features[moved].T @ np.where(right[moved], 1, -1).astype(np.float32)
        sums[0] -= change
        sums[1] += change
    found[rows] = right
    return found


def direction(sums: list[Floats], lengths: list[NDArray[np.float64]], group: Group) -> Floats:
    """From the left centre of each node to the right one: their sums at unit length, or zero where there is none."""
    scales = [np.where(one > NO_DIRECTION * group.sizes, 1 / np.maximum(one, NO_DIRECTION), 0) for one in lengths]
    left, right = (np.repeat(one.astype(np.float32), group.widths) for one in scales)
    return sums[1] * right - sums[0] * left


def node_sums(values: Floats, widths: Ints) -> NDArray[np.float64]:
    """Sum over the columns of each node."""
    sums, some = np.zeros(len(widths)), widths > 0  # none where all its labels are without features
    if some.any():
        sums[some] = np.add.reduceat(values, (widths.cumsum() - widths)[some])
    return sums


def first_direction(group: Group, draws: Draws) -> Floats:
    """From one label of each node to another, both drawn."""
    one = (draws[:, 0] * group.sizes).astype(np.int64)
    other = (draws[:, 1] * (group.sizes - 1)).astype(np.int64)
    other += other >= one
    starts = group.sizes.cumsum() - group.sizes
    signs = np.repeat(np.array([-1, 1], dtype=np.float32), len(starts))
    return group.features[np.concatenate([starts + one, starts + other])].T @ signs  # type: ignore[no-any-return]


def right_halves(leaning: Floats, sizes: Ints) -> NDArray[np.bool_]:
    """The labels of each node that lean most to the right, half of them or one more; of equal ones the last."""
    is_label, half = np.arange(sizes.max()) < sizes[:, None], sizes[:, None] // 2
    table = np.full(is_label.shape, np.inf, dtype=np.float32)  # a node with one label less is filled at its end
    table[is_label] = leaning
    bound = np.take_along_axis(np.sort(table, axis=1), half - 1, axis=1)
    left, tied = table < bound, table == bound
    left |= tied & (tied.cumsum(axis=1) <= half - left.sum(axis=1, keepdims=True))
    return np.logical_not(left[is_label], dtype=np.bool_)
