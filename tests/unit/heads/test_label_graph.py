"""Co-occurrence of labels against loops, and its table of fixed size."""

import torch
from scipy.sparse import csr_array

from datamodules.batch import Targets
from heads.graph.label_graph import LabelGraph, co_occurrence, given_second, mix

TRUTH = [[0, 1], [0, 1, 2], [0], [2, 3], [0, 9], []]  # 9 is a label that training never saw
NUM = 5  # label 4 has no documents


def both(i, j):
    return sum(i in row and j in row for row in TRUTH)


def test_counts_and_shares_equal_loops():
    counts = co_occurrence(Targets.from_lists(TRUTH), NUM)
    shares = given_second(counts).toarray()
    for i in range(NUM):
        for j in range(NUM):
            assert counts[i, j] == both(i, j)
            assert shares[i, j] == (1 if i == j else both(i, j) / max(both(j, j), 1))


def test_a_label_starts_with_itself_and_takes_its_strongest_neighbours():
    graph = LabelGraph(4, 2)
    vectors = torch.arange(8.0).view(4, 2)
    assert torch.equal(mix(vectors, graph.neighbours, graph.weights), vectors)
    matrix = torch.tensor([[0.5, 0.6, 0.9, 0.6], [0.0, 0.0, 0.0, 0.0], [0.2, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    graph.fill(csr_array(matrix.numpy()))
    kept = torch.tensor([[0.5, 0, 0.9, 0], [0, 0, 0, 0], [0.2, 0, 0, 0], [0, 0, 0.3, 0.4]])  # own entries are kept
    assert torch.allclose(mix(vectors, graph.neighbours, graph.weights), kept @ vectors)
    assert graph.filled


def test_the_table_has_one_size_and_a_second_fill_replaces_the_first():
    graph = LabelGraph(3, 8)
    assert graph.weights.shape == (3, 3)
    graph.fill(csr_array(torch.ones(3, 3).numpy()))
    graph.fill(csr_array(torch.eye(3).numpy() * 2))
    assert torch.equal(mix(torch.eye(3), graph.neighbours, graph.weights), torch.eye(3) * 2)
