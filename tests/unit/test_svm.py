"""One-vs-rest machines against a slow solution, and the same in every run."""

from __future__ import annotations

import io
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from datamodules.batch import Targets
from datamodules.errors import UserError
from heads import OneVsRestSvm
from heads.linear_engine import label_matrix
from heads.workers import Workers
from tests.unit.engines import LABELS, Context, batch_of, corpus, space_of


@pytest.fixture(scope="module")
def fitted():
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0)
    engine.fit(Context(counts, targets))
    return engine


def words_of(engine, counts):
    return engine.tfidf.matrix(counts)


def primal(words, positive, cost):
    """Minimum of |w|^2 / 2 + C sum max(0, 1 - y (w x + b))^2, the bias among the weights."""
    x = torch.cat([torch.from_numpy(words.toarray()), torch.ones(words.shape[0], 1)], 1).double()
    y = torch.where(positive, 1.0, -1.0).double()
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure():
        optimizer.zero_grad()
        value = w @ w / 2 + cost * ((1 - y * (x @ w)).relu() ** 2).sum()
        value.backward()
        return value

    optimizer.step(closure)
    return w.detach()


def objective(w, words, positive, cost):
    x = torch.cat([torch.from_numpy(words.toarray()), torch.ones(words.shape[0], 1)], 1).double()
    y = torch.where(positive, 1.0, -1.0).double()
    return float(w @ w / 2 + cost * ((1 - y * (x @ w)).relu() ** 2).sum())


@pytest.mark.parametrize("cost", [0.3, 1.0, 5.0])
def test_each_label_has_the_machine_of_the_primal_problem(cost):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0, cost=cost)
    engine.fit(Context(counts, targets))
    words, truth = words_of(engine, counts), targets.dense(LABELS) > 0
    for label in range(LABELS):
        expected = primal(words, truth[:, label], cost)
        got = torch.from_numpy(np.append(engine.weights[:, [label]].toarray(), engine.bias[label])).double()
        # the solver stops at a tolerance: as good to a hundredth, and near
        best, here = (objective(w, words, truth[:, label], cost) for w in (expected, got))
        assert best - 1e-6 <= here <= 1.01 * best
        assert (got - expected).norm() < 0.05 * expected.norm()


def test_ranking_equals_a_loop(fitted):
    counts, _ = corpus(30, seed=1)
    words = words_of(fitted, counts)
    margins = words.toarray() @ fitted.weights.toarray() + fitted.bias
    ranking = fitted.rank_rows(words, LABELS + 2)
    assert ranking.labels[:, LABELS:].eq(-1).all()
    assert ranking.scores[:, LABELS:].eq(0).all()
    for row, (labels, scores) in enumerate(zip(ranking.labels[:, :LABELS], ranking.scores[:, :LABELS], strict=True)):
        assert sorted(labels.tolist()) == list(range(LABELS))
        assert np.allclose(scores, 1 / (1 + np.exp(-4 * margins[row][labels])), atol=1e-5)
        assert (scores.diff() <= 0).all()


def test_a_batch_is_ranked_as_its_matrix(fitted):
    counts, _ = corpus(20, seed=2)
    features = type("Features", (), {"batch": batch_of(counts), "pooled": torch.zeros(20, 1)})()
    one, other = fitted.rank(features, 5), fitted.rank_rows(words_of(fitted, counts), 5)
    assert torch.equal(one.labels, other.labels)
    assert torch.allclose(one.scores, other.scores, atol=1e-6)


def test_blocks_of_documents_change_nothing(fitted, monkeypatch):
    words = words_of(fitted, corpus(150, seed=3)[0])
    whole = fitted.rank_rows(words, 4)
    monkeypatch.setattr("heads.svm.DENSE", 3 * LABELS)
    parts = fitted.rank_rows(words, 4)
    assert torch.equal(whole.labels, parts.labels)
    assert torch.equal(whole.scores, parts.scores)
    empty = fitted.rank_rows(words[:0], 4)
    assert empty.labels.shape == empty.scores.shape == (0, 4)


def test_ties_go_to_the_lower_label(fitted):
    _, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets))
    state = fitted.get_extra_state()
    engine.set_extra_state(state | {"values": torch.zeros_like(state["values"]), "bias": torch.zeros(LABELS)})
    assert engine.rank_rows(csr_array(np.ones((1, 40), np.float32)), 4).labels.tolist() == [[0, 1, 2, 3]]


def states_equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_same_in_two_runs_and_with_any_number_of_workers(monkeypatch):
    monkeypatch.setattr("heads.svm.GROUP", 5)
    counts, targets = corpus()
    states = []
    for workers in (1, 1, 2, 3):
        engine = OneVsRestSvm(1, space_of(targets), workers=workers)
        engine.fit(Context(counts, targets))
        states.append(engine.get_extra_state())
    assert all(states_equal(states[0], state) for state in states[1:])


def test_small_weights_are_dropped(fitted):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0.2)
    engine.fit(Context(counts, targets))
    whole, pruned = (part.weights.toarray() for part in (fitted, engine))
    assert np.array_equal(pruned, np.where(np.abs(whole) >= 0.2, whole, 0))
    assert 0 < engine.weights.nnz < fitted.weights.nnz
    assert np.array_equal(engine.bias, fitted.bias)
    assert np.allclose(engine.weight_norms(), np.linalg.norm(pruned, axis=0), atol=1e-6)


def test_a_label_of_no_document_and_one_of_all():
    counts, targets = corpus()
    truth = targets.dense(LABELS)
    truth[:, 3], truth[:, 5] = 1, 0
    targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in truth])
    engine = OneVsRestSvm(1, space_of(targets))
    engine.fit(Context(counts, targets))
    assert engine.bias[[3, 5]].tolist() == [1, -1]
    assert engine.weight_norms()[[3, 5]].tolist() == [0, 0]
    assert engine.weight_norms().isfinite().all()


def test_documents_without_words_or_labels():
    counts, _ = corpus()
    dense = counts.toarray()
    dense[:10] = 0
    targets = Targets.from_lists([[0], [], [1], *([i % LABELS] for i in range(117))])
    engine = OneVsRestSvm(1, space_of(targets))
    engine.fit(Context(csr_array(dense), targets))
    assert engine.rank_rows(words_of(engine, csr_array(dense)), 3).scores.isfinite().all()


def test_the_state_is_plain_and_carries_all(fitted):
    file = io.BytesIO()
    torch.save(fitted.state_dict(), file)
    file.seek(0)
    _, targets = corpus()
    other = OneVsRestSvm(1, space_of(targets))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.fitted
    assert states_equal(fitted.get_extra_state(), other.get_extra_state())
    assert other.get_extra_state()["values"].dtype == torch.float32
    assert other.get_extra_state()["labels"].dtype == torch.int32
    other.set_extra_state(None)
    assert other.pending == ("fit",)


def test_out_of_fold_scores_never_see_the_document():
    # Each document has a word of its own and a label at random: who has seen it knows the label, who has not does not.
    random = np.random.default_rng(0)
    size = 60
    dense = np.concatenate([np.zeros((size, 1)), np.eye(size), np.ones((size, 1))], 1).astype(np.float32)
    targets = Targets.from_lists([[int(label)] for label in random.integers(0, 6, size)])
    engine, ctx = OneVsRestSvm(1, space_of(targets, 6, size + 2), min_documents=1), Context(csr_array(dense), targets)
    engine.fit(ctx)
    seen = engine.rank_rows(engine.tfidf.matrix(csr_array(dense)), 1).labels[:, 0]
    before = engine.get_extra_state()
    ranking = engine.out_of_fold(ctx, folds=3, k=4)
    assert torch.equal(seen, targets.indices)
    assert (ranking.labels[:, 0] == targets.indices).float().mean() < 0.5
    assert ranking.labels.shape == ranking.scores.shape == (size, 4)
    assert states_equal(before, engine.get_extra_state())  # it stays as it was
    again = engine.out_of_fold(ctx, folds=3, k=4)
    assert torch.equal(ranking.labels, again.labels)
    assert torch.equal(ranking.scores, again.scores)


def test_out_of_fold_scores_are_good_where_documents_are_alike():
    counts, targets = corpus(300)
    engine = OneVsRestSvm(1, space_of(targets))
    top = engine.out_of_fold(Context(counts, targets), folds=4, k=1).labels
    assert targets.dense(LABELS).gather(1, top).mean() > 0.8
    assert not engine.fitted


@pytest.mark.parametrize("folds", [0, 1, 121])
def test_folds_that_cannot_be(folds):
    counts, targets = corpus()
    with pytest.raises(UserError, match=f"{folds} folds of 120 documents"):
        OneVsRestSvm(1, space_of(targets)).out_of_fold(Context(counts, targets), folds, 1)


def test_another_with_the_same_settings():
    _, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), 3, False, 7, 0.5, 0.1, 2.0, 1)
    twin = engine.unfitted()
    assert twin is not engine
    assert (twin.cost, twin.prune, twin.slope, twin.workers) == (0.5, 0.1, 2.0, 1)
    assert (twin.tfidf.min_documents, twin.tfidf.sublinear, twin.tfidf.lead) == (3, False, 7)


def test_labels_that_training_never_saw_have_no_column():
    matrix = label_matrix(Targets.from_lists([[0, 5], [2], []]), 3)
    assert matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_without_the_library_it_cannot_be_fitted_but_ranks(monkeypatch, fitted):
    monkeypatch.setitem(sys.modules, "liblinear", None)
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets))
    for start in (lambda: engine.check_plan(["fit"]), lambda: engine.fit(Context(counts, targets))):
        with pytest.raises(UserError, match=r"^the library liblinear is missing: pip install 'xmc-zoo\[linear\]'$"):
            start()
    engine.load_state_dict(fitted.state_dict())
    assert engine.rank_rows(words_of(engine, counts), 2).labels.shape == (120, 2)


@pytest.mark.parametrize("setting", [{"cost": 0}, {"prune": -1}, {"slope": 0}, {"workers": 0}, {"min_documents": 0}])
def test_settings_that_cannot_be(setting):
    _, targets = corpus()
    (name,) = setting
    with pytest.raises(UserError, match=rf"--model\.head\.{name}=.* is too low"):
        OneVsRestSvm(1, space_of(targets), **setting)


# --- processes


def test_tasks_are_done_each_in_a_process_of_its_own():
    state = [0]

    def work(number):
        state[0] += 1
        return number, state[0], os.getpid()

    with Workers(work, 5, 2) as workers:
        got = []
        while len(got) < 5:
            got += workers.receive()
        assert workers.receive() == []
    assert sorted(number for number, _, _ in got) == list(range(5))
    assert {seen for _, seen, _ in got} == {1}  # what another has changed is not there
    assert len({process for _, _, process in got}) == 5


def drained(work, at_once=1):
    with Workers(work, 2, at_once) as workers:
        try:
            while True:
                workers.receive()
        finally:
            drained.processes = list(workers.running.values())


def test_a_process_that_dies_is_noticed():
    def work(number):
        if number:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"has ended before its time \(-9\): perhaps for want of memory"):
        drained(work, at_once=2)
    assert drained.processes
    assert not any(process.is_alive() for process in drained.processes)


def test_a_process_that_gives_up_is_noticed():
    with pytest.raises(UserError, match=r"has ended before its time \(101\): the library has given up"):
        drained(lambda number: os._exit(101))


def test_what_goes_wrong_in_a_process_is_told():
    def full(number):
        raise UserError("the disk is full")

    def wrong(number):
        raise ZeroDivisionError("not by zero")

    with pytest.raises(UserError, match="the disk is full"):
        drained(full)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: not by zero"):
        drained(wrong)


def test_whoever_leaves_ends_the_processes():
    begin = time.monotonic()
    with Workers(lambda number: time.sleep(60), 2, 2) as workers:
        assert workers.receive(0.1) == []
        processes = list(workers.running.values())
    assert time.monotonic() - begin < 30
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)
