"""One-vs-rest SVMs against the primal solution."""

import sys

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from backbones.base import Features
from datamodules.batch import Targets
from heads import OneVsRestSvm, TransitionContext
from heads.engines import one_vs_rest
from heads.tree.label_tree import label_matrix
from tests.support.engines import LABELS, batch_of, corpus, space_of
from tests.support.errors import raises
from tests.support.transitions import Recorded
from zoo.core.errors import UserError


@pytest.fixture(scope="module")
def fitted():
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0)
    engine.fit(TransitionContext(words=counts, targets=targets))
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


@pytest.mark.parametrize("cost", [0.3, 5.0])
def test_weights_solve_the_primal_problem(cost):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0, cost=cost)
    engine.fit(TransitionContext(words=counts, targets=targets))
    words, truth = words_of(engine, counts), targets.dense(LABELS) > 0
    for label in range(LABELS):
        expected = primal(words, truth[:, label], cost)
        got = torch.from_numpy(np.append(engine.weights[:, [label]].toarray(), engine.bias[label])).double()
        # the solver stops at a tolerance: as good to a hundredth, and near
        best, here = (objective(w, words, truth[:, label], cost) for w in (expected, got))
        assert best - 1e-6 <= here <= 1.01 * best
        assert (got - expected).norm() < 0.05 * expected.norm()


def proximal(x, y, cost, steps=2000):
    """Minimum of |w|_1 + C sum max(0, 1 - y w x)^2 by accelerated proximal gradient descent, ProXML's solver."""
    step = 1 / (2 * cost * np.linalg.norm(x, 2) ** 2)
    w = ahead = np.zeros(x.shape[1])
    pace = 1.0
    for _ in range(steps):
        moved = ahead + step * 2 * cost * x.T @ (y * np.maximum(0, 1 - y * (x @ ahead)))
        new = np.sign(moved) * np.maximum(np.abs(moved) - step, 0)
        pace, last = (1 + (1 + 4 * pace**2) ** 0.5) / 2, pace
        w, ahead = new, new + (last - 1) / pace * (new - w)
    return w


@pytest.mark.parametrize("cost", [0.3, 1.0])
def test_weights_with_the_l1_penalty_solve_its_problem(cost):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0, cost=cost, penalty="l1")
    engine.fit(TransitionContext(words=counts, targets=targets))
    x = np.hstack([words_of(engine, counts).toarray(), np.ones((counts.shape[0], 1))]).astype(np.float64)
    truth = targets.dense(LABELS).numpy() > 0
    sparse = 0
    for label in range(LABELS):
        y = np.where(truth[:, label], 1.0, -1.0)
        got = np.append(engine.weights[:, [label]].toarray(), engine.bias[label]).astype(np.float64)
        best, here = (
            np.abs(w).sum() + cost * (np.maximum(0, 1 - y * (x @ w)) ** 2).sum() for w in (proximal(x, y, cost), got)
        )
        assert best - 1e-5 <= here <= 1.001 * best
        sparse += int((got[:-1] == 0).sum())
    assert sparse > 0.5 * LABELS * x.shape[1]


def test_an_unknown_penalty_is_refused():
    _, targets = corpus()
    with raises(UserError, "penalty=l3", "l2", "l1"):
        OneVsRestSvm(1, space_of(targets), penalty="l3")


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


def test_a_batch_is_ranked_like_its_matrix(fitted):
    counts, _ = corpus(20, seed=2)
    features = type("Features", (), {"batch": batch_of(counts), "pooled": torch.zeros(20, 1)})()
    one, other = fitted.rank(features, 5), fitted.rank_rows(words_of(fitted, counts), 5)
    assert torch.equal(one.labels, other.labels)
    assert torch.allclose(one.scores, other.scores, atol=1e-6)


def test_blocks_of_documents_do_not_matter(fitted, monkeypatch):
    words = words_of(fitted, corpus(150, seed=3)[0])
    whole = fitted.rank_rows(words, 4)
    monkeypatch.setattr("heads.engines.svm.DENSE", 3 * LABELS)
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
    engine.set_extra_state(None)
    assert engine.pending == ("fit",)


def states_equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_fits_are_deterministic_for_any_number_of_workers(monkeypatch):
    monkeypatch.setattr("heads.engines.svm.GROUP", 5)
    counts, targets = corpus()
    states = []
    for workers in (1, 1, 2):
        engine = OneVsRestSvm(1, space_of(targets), workers=workers)
        engine.fit(TransitionContext(words=counts, targets=targets))
        states.append(engine.get_extra_state())
    assert all(states_equal(states[0], state) for state in states[1:])


def test_small_weights_are_pruned(fitted):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), prune=0.2)
    engine.fit(TransitionContext(words=counts, targets=targets))
    whole, pruned = (part.weights.toarray() for part in (fitted, engine))
    assert np.array_equal(pruned, np.where(np.abs(whole) >= 0.2, whole, 0))
    assert 0 < engine.weights.nnz < fitted.weights.nnz
    assert np.array_equal(engine.bias, fitted.bias)
    assert np.allclose(engine.weight_norms(), np.linalg.norm(pruned, axis=0), atol=1e-6)


def test_labels_of_no_or_all_documents():
    counts, targets = corpus()
    truth = targets.dense(LABELS)
    truth[:, 3], truth[:, 5] = 1, 0
    targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in truth])
    engine = OneVsRestSvm(1, space_of(targets))
    engine.fit(TransitionContext(words=counts, targets=targets))
    assert engine.bias[[3, 5]].tolist() == [1, -1]
    assert engine.weight_norms()[[3, 5]].tolist() == [0, 0]
    assert engine.weight_norms().isfinite().all()


def test_out_of_fold_scores_never_see_the_document():
    # Each document has a word of its own and a label at random: who has seen it knows the label, who has not does not.
    random = np.random.default_rng(0)
    size = 60
    dense = np.concatenate([np.zeros((size, 1)), np.eye(size), np.ones((size, 1))], 1).astype(np.float32)
    targets = Targets.from_lists([[int(label)] for label in random.integers(0, 6, size)])
    engine = OneVsRestSvm(1, space_of(targets, 6, size + 2), min_documents=1)
    ctx = TransitionContext(words=csr_array(dense), targets=targets)
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


@pytest.mark.parametrize("folds", [0, 1, 121])
def test_invalid_folds_are_rejected(folds):
    counts, targets = corpus()
    with raises(UserError, folds, 120):
        OneVsRestSvm(1, space_of(targets)).out_of_fold(TransitionContext(words=counts, targets=targets), folds, 1)


def test_unfitted_copies_have_the_same_settings():
    _, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), 0.5, 0.1, 2.0, 1, min_documents=3, sublinear=False, lead=7)
    twin = engine.unfitted()
    assert twin is not engine
    assert (twin.cost, twin.prune, twin.slope, twin.workers) == (0.5, 0.1, 2.0, 1)
    assert (twin.tfidf.min_documents, twin.tfidf.sublinear, twin.tfidf.lead) == (3, False, 7)


def test_unseen_labels_have_no_column():
    matrix = label_matrix(Targets.from_lists([[0, 5], [2], []]), 3)
    assert matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_ranking_does_not_need_the_library(monkeypatch, fitted):
    monkeypatch.setitem(sys.modules, "liblinear", None)
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets))
    ctx = TransitionContext(words=counts, targets=targets)
    for start in (lambda: engine.check_plan(["fit"]), lambda: engine.fit(ctx)):
        with raises(UserError, "liblinear", "xmc-zoo[linear]"):
            start()
    engine.load_state_dict(fitted.state_dict())
    assert engine.rank_rows(words_of(engine, counts), 2).labels.shape == (120, 2)


@pytest.mark.parametrize("setting", [{"cost": 0}, {"prune": -1}, {"slope": 0}, {"workers": 0}, {"min_documents": 0}])
def test_invalid_settings_are_rejected(setting):
    _, targets = corpus()
    ((name, value),) = setting.items()
    with raises(UserError, f"`{name}={value}`"):
        OneVsRestSvm(1, space_of(targets), **setting)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_normalized_weights_have_powers_of_their_length(power, fitted):
    counts, targets = corpus()
    engine = OneVsRestSvm(1, space_of(targets), normalize=power)
    engine.load_state_dict(fitted.state_dict())
    weights, words = fitted.weights.toarray(), words_of(fitted, counts).toarray()
    expected = words @ (weights / np.linalg.norm(weights, axis=0) ** power) + fitted.bias
    assert np.allclose(engine._margins(words_of(engine, counts)), expected, atol=1e-5)


def encoded(counts, seed=0):
    """The documents as a batch, with document vectors."""
    batch = batch_of(counts)
    pooled = torch.randn(len(batch), 5, generator=torch.Generator().manual_seed(seed))
    tokens = torch.zeros(len(batch), 0, 5)
    return Features(tokens, torch.zeros(len(batch), 0, dtype=torch.bool), pooled, (tokens,), batch=batch)


@pytest.mark.parametrize("kind", ["dense", "both"])
def test_document_vectors_beside_or_instead_of_words(kind):
    """The same weights and rankings as those of a matrix that is put together by hand."""
    counts, targets = corpus()
    features = encoded(counts)
    engine = OneVsRestSvm(5, space_of(targets), prune=0, features=kind, dense_weight=0.5)
    ctx = TransitionContext(features, targets, words=counts)
    engine.fit(ctx)
    vectors = (features.pooled / features.pooled.norm(dim=1, keepdim=True)).numpy()
    words = OneVsRestSvm(1, space_of(targets), prune=0)
    words.tfidf.learn(counts)
    rows = vectors if kind == "dense" else np.concatenate([words.tfidf.matrix(counts).toarray(), 0.5 * vectors], 1)
    words.learn(csr_array(rows.astype(np.float32)), label_matrix(targets, LABELS), ctx)
    assert np.allclose(engine.weights.toarray(), words.weights.toarray(), atol=1e-5)
    got, expected = engine.rank(features, 4), words.rank_rows(csr_array(rows.astype(np.float32)), 4)
    assert torch.equal(got.labels, expected.labels)
    assert torch.allclose(got.scores, expected.scores, atol=1e-5)
    assert engine.out_of_fold(ctx, 2, 3).labels.shape == (120, 3)
    assert engine.unfitted().settings == engine.settings


def test_vectors_of_two_processes_are_those_of_one():
    counts, targets = corpus()
    features, cpu = encoded(counts), torch.device("cpu")
    first, second = (Recorded(features, targets, share=(i, 2)) for i in range(2))
    parts = [context.train_vectors(5, cpu) for context in (first, second)]
    assert torch.equal(parts[0] + parts[1], features.pooled)
    assert torch.equal(TransitionContext(features, targets).train_vectors(5, cpu), features.pooled)


@pytest.mark.parametrize("settings", [{"features": "dense"}, {"features": "none"}, {"dense_weight": 0}])
def test_invalid_features_are_rejected(settings):
    with raises(UserError, next(iter(settings))):
        OneVsRestSvm(1, space_of(corpus()[1]), **settings)


def test_documents_that_a_problem_leaves_out_do_not_decide_it(monkeypatch):
    generator = np.random.default_rng(0)
    topics = generator.integers(0, 40, 3000)  # of documents; the words of a topic, and words of all topics
    own = (topics[:, None] * 10 + generator.integers(0, 10, (3000, 8))) % 400
    rows, columns = np.arange(3000).repeat(20), np.hstack([own, generator.integers(400, 900, (3000, 12))]).ravel()
    words = csr_array((np.ones(len(rows), np.float32), (rows, columns)), (3000, 900))
    words = csr_array(words / np.sqrt(words.power(2).sum(1))[:, None])
    labels = csr_array((np.ones(3000, np.float32), (np.arange(3000), topics)), (3000, 41))
    for name, value in {"SMALL": 100, "HARD": 20, "RANDOM": 30, "SHARE": 2}.items():
        monkeypatch.setattr(one_vs_rest, name, value)
    monkeypatch.setattr(one_vs_rest.Problem, "solve", recorded := Sizes(one_vs_rest.Problem.solve))
    some = one_vs_rest.OneVsRest(words, labels, "-s 1 -c 1 -q -e 0.001")
    every = one_vs_rest.OneVsRest(words, labels, "-s 1 -c 1 -q -e 0.001", active=False)
    problems = range(0, 41, 16)  # groups of labels; the last one has a label without documents
    found = [column for start in problems for column in some.fit(range(start, min(start + 16, 41)))]
    expected = [column for start in problems for column in every.fit(range(start, min(start + 16, 41)))]
    assert sum(size < 3000 for size in recorded.sizes) >= 40
    assert min(recorded.sizes) < 500
    got, best = some._margins(found), some._margins(expected)
    # the documents that are left out have margins below -0.95 instead of -1
    assert np.abs(got - best).max() < 0.05
    assert (found[40].bias, len(found[40].words)) == (-1, 0)


class Sizes:
    """Records the number of documents of each problem."""

    def __init__(self, solve):
        self.solve, self.sizes = solve, []

    def __get__(self, problem, _):
        self.sizes.append(problem.size)
        return lambda positive: self.solve(problem, positive)
