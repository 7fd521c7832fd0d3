"""Calibrations and thresholds against slow searches over all candidates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from datamodules import Targets
from heads import Ranking
from tests.support.documents import label_space
from tests.support.errors import raises
from zoo.core.errors import UserError
from zoo.core.metrics import calibration_error, reliability
from zoo.training.calibration import Calibration
from zoo.training.fit_calibration import calibrate_ranking, candidates, fit_probabilities
from zoo.training.fit_thresholds import Counts, Target, all_cuts, best_cuts, fit_thresholds, label_gains, shrunk

COUNTS = [400, 150, 90, 60, 30, 12, 8, 5, 2, 1]


def documents(size=300, seed=0, depth=8):
    """Rankings whose scores are overconfident, the more so the rarer a label is."""
    random = np.random.default_rng(seed)
    share = np.array(COUNTS) / 800 + 0.03
    logits = np.log(share / (1 - share)) + 1.5 * random.normal(size=(size, len(COUNTS)))
    truth = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    truth[~truth.any(1), 0] = True
    scores = torch.from_numpy(1 / (1 + np.exp(-(1.7 * logits + 1.5 - 0.3 * np.log1p(COUNTS))))).float()
    top = scores.topk(depth, dim=1)
    rows = [np.flatnonzero(row).tolist() for row in truth]
    return Ranking(top.values, top.indices), Targets.from_lists(rows)


def found_in(ranking, targets, space):
    hits = torch.from_numpy(targets.dense(space.num_labels).numpy() > 0).gather(1, ranking.labels)
    return candidates(ranking, hits, targets, space)


@pytest.fixture(scope="module")
def space():
    return label_space(COUNTS)


@pytest.fixture(scope="module")
def found(space):
    few = documents(40)
    coarse = Ranking((few[0].scores * 40).round() / 40, few[0].labels)  # with ties
    return found_in(coarse, few[1], space)


def slow_utility(found, cuts, target):
    """What target a threshold for each label reaches, with loops over candidates."""
    predicted, hits = np.zeros(len(found.support)), np.zeros(len(found.support))
    for label, score, hit in zip(found.labels, found.scores, found.hits, strict=True):
        predicted[label] += score >= cuts[label]
        hits[label] += hit and score >= cuts[label]
    if target.goal == "micro-f1":
        return 2 * hits.sum() / (predicted.sum() + found.support.sum())
    if target.goal == "macro-f1":
        return np.mean([2 * h / (p + s) for h, p, s in zip(hits, predicted, found.support, strict=True) if s])
    if target.goal == "precision":
        return predicted.sum() if hits.sum() >= target.value * predicted.sum() else -1
    return -abs(predicted.sum() - target.value * found.size)


@pytest.mark.parametrize("text", ["micro-f1", "macro-f1", "precision=0.6", "labels=1.5"])
def test_one_threshold_against_a_search(found, text):
    target, labels = Target.parse(text), len(found.counts)
    (cut,) = best_cuts(found, np.zeros(labels, np.int64), target, 1)
    tried = [slow_utility(found, np.full(labels, t), target) for t in [*np.unique(found.scores), 2.0]]
    assert slow_utility(found, np.full(labels, cut), target) == pytest.approx(max(tried))


@pytest.mark.parametrize("text", ["micro-f1", "macro-f1"])
def test_thresholds_of_classes_against_a_search(found, text):
    """All combinations of three thresholds; the best ones of labels are at least as good."""
    target, classes = Target.parse(text), found.classes
    cuts = all_cuts(found, target)
    grid = [np.append(np.unique(found.scores[classes[found.labels] == c]), 2.0) for c in range(3)]
    grid = [values[:: max(1, len(values) // 8)] for values in grid]
    tried = max(
        slow_utility(found, np.array([a, b, c])[classes], target) for a in grid[0] for b in grid[1] for c in grid[2]
    )
    by_class = slow_utility(found, cuts["class"][classes], target)
    assert by_class >= tried - 1e-9
    assert slow_utility(found, np.where(np.isnan(cuts["label"]), 2, cuts["label"]), target) >= by_class - 1e-9


def test_precision_holds_in_each_class_and_shares_of_labels_follow_their_frequency(found):
    classes, target = found.classes, Target.parse("precision=0.7")
    cuts = all_cuts(found, target)["class"]
    for number in range(3):
        chosen = (classes[found.labels] == number) & (found.scores >= cuts[number])
        assert found.hits[chosen].mean() >= 0.7 if chosen.any() else True
    cuts = all_cuts(found, Target.parse("labels=2"))["class"]
    chosen = found.scores >= cuts[classes][found.labels]
    shares = np.bincount(classes, found.support) / found.support.sum()
    assert np.bincount(classes[found.labels[chosen]], minlength=3) / 80 == pytest.approx(shares, abs=0.1)


def test_gains_sum_to_the_f1_of_labels(found):
    gains = np.bincount(found.labels, label_gains(found), len(found.counts))
    counts = Counts.of(found, np.zeros(len(found.counts)))
    expected = 2 * counts.hits / np.maximum(counts.predicted + counts.support, 1)
    assert gains == pytest.approx(expected[: len(gains)])
    assert counts.macro_f1 == pytest.approx(slow_utility(found, np.zeros(len(found.counts)), Target("macro-f1")))


def test_shrinkage_goes_from_own_thresholds_to_those_of_classes(found):
    cuts = all_cuts(found, Target("macro-f1"))
    by_class = cuts["class"][found.classes]
    own = np.where(np.isnan(cuts["label"]), by_class, cuts["label"])
    has = found.support[: len(own)] > 0
    assert shrunk(cuts, found, 0)[has] == pytest.approx(own[has], abs=1e-6)
    assert shrunk(cuts, found, np.inf) == pytest.approx(by_class, abs=1e-6)
    middle = shrunk(cuts, found, 3)
    assert ((middle - own) * (middle - by_class) <= 1e-12)[has].all()
    support = found.support[: len(own)]
    logits = [np.log(t.clip(1e-9, 1 - 1e-9) / (1 - t.clip(1e-9, 1 - 1e-9))) for t in (own, by_class)]
    expected = 1 / (1 + np.exp(-(support * logits[0] + 3 * logits[1]) / (support + 3)))
    assert middle == pytest.approx(np.where(np.isnan(cuts["label"]), by_class, expected))


def test_strength_is_the_best_in_cross_validation(space):
    ranking, targets = documents(120)
    found, truth = found_in(ranking, targets, space), (targets.rows.numpy(), targets.indices.numpy())
    target = Target("macro-f1")
    fitted = fit_thresholds(found, truth, target)
    total = {}
    for fits, measured in found.folds(truth, 5, 0):
        assert fits.size + measured.size == 120
        assert fits.support.sum() + measured.support.sum() == len(targets.indices)
        assert not set(fits.documents) & set(measured.documents)
        for strength in (0, 3, 30, np.inf):
            counts = Counts.of(measured, shrunk(all_cuts(fits, target), fits, strength))
            total[strength] = total[strength].plus(counts) if strength in total else counts
    assert fitted.reached["label"].macro_f1 >= max(counts.macro_f1 for counts in total.values())
    assert fitted.cuts["label"] == pytest.approx(shrunk(all_cuts(found, target), found, fitted.strength))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_probabilities_are_calibrated_on_other_documents(space, method):
    (ranking, targets), (others, truth) = documents(2000), documents(2000, seed=1)
    made, report = calibrate_ranking(ranking, targets, space, method, "label", Target("macro-f1"))
    after = made.ranked(others, others.labels.shape[1])
    errors = []
    for each in (others, after):
        hits = found_in(each, truth, space).hits.reshape(each.labels.shape)
        errors.append(calibration_error(each.scores.numpy().ravel(), hits.ravel()))
    assert errors[1] < 0.03 < 0.05 < errors[0]
    assert report.errors[5][1] < report.errors[5][0] / 2
    assert report.errors[5][1] == pytest.approx(calibration_error(*top(after, truth, space)), abs=0.02)
    own = np.array(made.weights)
    slopes = own[1] + own[3] * np.log1p([COUNTS[0], COUNTS[-1]])
    assert (slopes > 0).all()
    assert Calibration.of(made.stored(), space) == made


def top(ranking, truth, space, k=5):
    short = Ranking(ranking.scores[:, :k], ranking.labels[:, :k])
    return short.scores.numpy().ravel(), found_in(short, truth, space).hits


def test_weights_maximize_the_likelihood(space):
    ranking, targets = documents(500)
    found = found_in(ranking, targets, space)
    weights, _ = fit_probabilities(ranking, torch.from_numpy(found.hits).view(ranking.labels.shape), space, "platt")

    def loss(weights):
        made = Calibration("platt", list(weights), 8, "global", "", {}, space.counts)
        p = made.apply(ranking.scores, ranking.labels).double().numpy().ravel()
        penalty = 0.5 * np.square(np.array(weights) - [0, 1, 0, 0]).sum()
        return -np.log(np.where(found.hits, p, 1 - p)).sum() + penalty

    best = loss(weights)
    for i in range(4):
        for step in (-0.02, 0.02):
            assert loss(np.array(weights) + step * np.eye(4)[i]) > best


def test_calibration_error_against_a_loop():
    random = np.random.default_rng(0)
    scores, hits = np.append(random.random(200), [0.0, 1.0]), random.random(202) < 0.4
    expected = 0.0
    for low in range(15):
        inside = [i for i, score in enumerate(scores) if low <= min(score * 15, 14.5) < low + 1]
        if inside:
            expected += abs(np.mean(scores[inside]) - np.mean(hits[inside])) * len(inside) / len(scores)
    assert calibration_error(scores, hits) == pytest.approx(expected)
    assert reliability(scores, hits)[0].sum() == 202
    assert calibration_error(np.zeros(0), np.zeros(0, bool)) == 0


def test_candidates_that_are_all_wrong_teach_nothing():
    ranking, _ = documents(20)
    space, targets = label_space(COUNTS, unseen=["x"]), Targets.from_lists([[10]] * 20)
    with raises(UserError, "candidates"):
        calibrate_ranking(ranking, targets, space, "platt", "label", Target("macro-f1"))


def test_a_label_without_candidates_has_the_threshold_of_its_class(found):
    rare = replace(
        found, **{name: getattr(found, name)[found.labels != 9] for name in ("documents", "labels", "scores", "hits")}
    )
    cuts = all_cuts(rare, Target("macro-f1"))
    assert np.isnan(cuts["label"][9])
    assert shrunk(cuts, rare, 0)[9] == pytest.approx(cuts["class"][0])


@pytest.mark.parametrize(
    "text", ["f1", "precision=1.5", "precision=0", "labels=0", "labels=-1", "labels=nan", "labels", ""]
)
def test_unknown_targets_are_refused(text):
    with raises(UserError, f"target={text}", "macro-f1"):
        Target.parse(text)
