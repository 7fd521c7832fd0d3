"""The comparison of an exported model with its checkpoint."""

import numpy as np
import pytest

from tests.support.errors import raises
from zoo.core.errors import UserError
from zoo.deploy.parity import Measured, compare, measure, precision

SCORES = np.array([[0.9, 0.5, 0.5, 0.2, 0.1, 0.05], [0.8, 0.7, 0.6, 0.5, 0.4, 0.3]], dtype=np.float32)
LABELS = np.array([[3, 1, 2, 0, 5, 4], [0, 1, 2, 3, 4, 5]])
TRUTH = [{3}, {1}]


def compared(scores=SCORES, labels=LABELS):
    return compare(Measured(scores, labels, 2.0), Measured(SCORES, LABELS, 1.0), TRUTH)


def test_the_same_ranking():
    found = compared()
    assert (found.documents, found.same, found.tied, found.difference) == (2, 2, 0, 0)
    assert (found.precision, found.reference, found.speed) == (0.5, 0.5, 2.0)
    found.check_same("model")


def test_labels_with_equal_scores_may_change_places():
    labels = LABELS.copy()
    labels[0, [1, 2]] = labels[0, [2, 1]]
    found = compared(labels=labels)
    assert (found.same, found.tied) == (1, 1)
    found.check_same("model")


@pytest.mark.parametrize(("row", "places"), [(0, [0, 1]), (1, [3, 4]), (1, [4, 5])])
def test_other_labels_are_an_error(row, places):
    labels = LABELS.copy()
    labels[row, places] = labels[row, places[::-1]]
    found = compared(labels=labels)
    assert (found.same, found.tied) == (1, 0)
    with raises(UserError, "model", 1, 2):
        found.check_same("model")


@pytest.mark.parametrize("wrong", [2e-4, np.nan, np.inf])
def test_other_scores_are_an_error(wrong):
    scores = SCORES.copy()
    scores[1, 2] += wrong
    assert not compared(scores).difference <= 1e-4
    with raises(UserError, "model"):
        compared(scores).check_same("model")
    scores = SCORES.copy()
    scores[1, 5] += wrong  # below the top 5
    compared(scores).check_same("model")


def test_a_loss_of_precision_is_an_error():
    labels = LABELS.copy()
    labels[0] = np.roll(labels[0], 1)
    found = compared(labels=labels)
    assert found.precision == 0
    with raises(UserError, "model", 50, "`int8`"):
        found.check_loss("model")
    compared().check_loss("model")
    with raises(UserError, "`input`"):  # no labels, nothing to compare
        compare(Measured(SCORES, LABELS, 1), Measured(SCORES, LABELS, 1), [set(), set()]).check_loss("model")


def test_precision_counts_documents_with_labels():
    assert precision(LABELS, [{3}, set()]) == 1
    assert precision(LABELS, [{3, 1}, {1}]) == 0.5
    assert np.isnan(precision(LABELS, [set(), set()]))


def test_documents_keep_their_order():
    texts = ["a" * n for n in (3, 1, 5, 2, 4)]

    def run(batch):
        sizes = np.array([[len(text)] for text in batch])
        return sizes / 10, sizes

    ticks = []
    found = measure(run, texts, 2, ticks.append)
    assert found.labels[:, 0].tolist() == [3, 1, 5, 2, 4]
    assert found.scores[:, 0].tolist() == [0.3, 0.1, 0.5, 0.2, 0.4]
    assert found.speed > 0
    assert ticks
