"""Calibrations: probabilities, thresholds, and what a checkpoint may contain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import zoo
from heads import Ranking
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.unit.training.test_tagger import TEXTS, make
from zoo.training.calibration import Calibration
from zoo.training.ensemble_tagger import EnsembleTagger

COUNTS = [900, 50, 20, 3, 1]


def calibration(method="platt", kind="label", counts=COUNTS, **changes):
    cuts = {"global": [0.4], "class": [0.05, 0.06, 0.07], "label": [0.5, 0.6, 0.7, 0.8, 0.9]}
    steps = [[-2.0, 0.0, 2.0], [0.1, 0.2, 0.8]] if method == "isotonic" else [[], []]
    return Calibration(method, [0.1, 0.8, -0.2, 0.05], 4, kind, "macro-f1", cuts, counts, steps, **changes)


def slow(own, score, label):
    z, c = np.log(score / (1 - score)), np.log(1 + own.counts[label])
    x = own.weights[0] + own.weights[1] * z + own.weights[2] * c + own.weights[3] * z * c
    return float(np.interp(x, *own.steps)) if own.steps[0] else 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_probabilities_against_a_loop(method):
    own = calibration(method)
    scores, labels = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.randint(0, 5, (6, 4))
    found = own.apply(scores, labels)
    for x, label, p in zip(scores.flatten().tolist(), labels.flatten().tolist(), found.flatten().tolist(), strict=True):
        assert p == pytest.approx(slow(own, x, label), abs=1e-6)
    extremes = own.apply(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0, 1, -1]))
    assert 0 <= extremes[0] < extremes[1] <= 1
    assert extremes[2] == 0


def test_rankings_are_sorted_again_and_padding_stays_last():
    ranking = Ranking(torch.tensor([[0.85, 0.8, 0.79, 0.0]]), torch.tensor([[0, 4, 3, -1]]))
    found = calibration().ranked(ranking, 4)
    assert found.labels.tolist() == [[4, 3, 0, -1]]  # the negative weight of the count
    assert found.scores[0].tolist() == sorted(found.scores[0].tolist(), reverse=True)
    assert calibration().ranked(ranking, 2).labels.tolist() == [[4, 3]]


def test_thresholds_of_each_kind():
    own = calibration()
    assert own.thresholds_of("global").tolist() == [0.4] * 5
    assert own.thresholds_of("class").tolist() == [0.07, 0.06, 0.05, 0.05, 0.05]
    assert own.thresholds.tolist() == own.cuts["label"]
    assert replace(own, counts=[*COUNTS, 30]).thresholds.tolist() == [*own.cuts["label"], 0.06]  # a label added later


def test_tagger_gives_probabilities_and_labels_above_their_thresholds():
    tagger = make()
    plain = tagger.tag(TEXTS, k=5)
    assert tagger.thresholds is None
    own = calibration(counts=tagger.module.space.counts)
    tagger.module.calibration = replace(own, candidates=5)
    found, index = tagger.tag(TEXTS, k=5), {name: i for i, name in enumerate(tagger.names)}
    for before, after in zip(plain, found, strict=True):
        expected = {tag.label: slow(own, tag.score, index[tag.label]) for tag in before}
        assert {tag.label: tag.score for tag in after} == pytest.approx(expected, abs=1e-5)
        assert [tag.score for tag in after] == sorted((tag.score for tag in after), reverse=True)
    tagger.module.calibration = replace(tagger.module.calibration, kind="class")
    least = dict(zip(tagger.names, tagger.thresholds, strict=True))
    kept = [[tag for tag in tags if tag.score >= least[tag.label]] for tags in found]
    assert 0 < sum(map(len, kept)) < sum(map(len, found))
    assert tagger.tag(TEXTS, threshold="auto") == kept
    assert [tags[:1] for tags in found] == tagger.tag(TEXTS, k=1)  # the candidates do not depend on k


def test_automatic_threshold_of_a_model_without_calibration_is_the_tuned_one():
    tagger = make()
    tagger.module.threshold = 0.3
    assert tagger.tag(TEXTS, threshold="auto") == tagger.tag(TEXTS, k=5, threshold=0.3)
    with raises(zoo.UserError, "threshold=automatic", "auto"):
        tagger.tag(TEXTS, threshold="automatic")


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_checkpoints_keep_the_calibration(tmp_path, method):
    tagger = make()
    tagger.module.calibration = calibration(method, counts=tagger.module.space.counts)
    tagger.save(tmp_path / "a.ckpt")
    again = zoo.load(tmp_path / "a.ckpt")
    assert again.calibration == tagger.calibration
    assert again.tag(TEXTS, threshold="auto") == tagger.tag(TEXTS, threshold="auto")


def test_an_ensemble_has_its_own_calibration(tmp_path):
    for name in "ab":
        make().save(tmp_path / f"{name}.ckpt")
    from zoo.training.checkpoint import read_checkpoint

    contents = [read_checkpoint(tmp_path / f"{name}.ckpt") for name in "ab"]
    made = EnsembleTagger([zoo.load(tmp_path / f"{name}.ckpt") for name in "ab"], contents)
    plain = made.tag(TEXTS, k=5)
    made.own_calibration = replace(calibration(counts=made.module.space.counts), candidates=5)
    made.save(tmp_path / "c.ckpt")
    again, single = zoo.load(tmp_path / "c.ckpt"), make()
    single.module.calibration = made.own_calibration
    assert again.thresholds.tolist() == made.thresholds.tolist()
    assert plain != again.tag(TEXTS, k=5)
    for tags, expected in zip(again.tag(TEXTS, k=5), single.tag(TEXTS, k=5), strict=True):  # equal members
        assert [tag.score for tag in tags] == pytest.approx([tag.score for tag in expected], abs=1e-6)


DAMAGED = [
    {"method": "other"},
    {"kind": "word"},
    {"target": 5},
    {"candidates": 0},
    {"candidates": 10**9},
    {"candidates": True},
    {"weights": [0.0, 1.0, 0.0]},
    {"weights": [0.0, float("nan"), 0.0, 0.0]},
    {"weights": [0.0, float("inf"), 0.0, 0.0]},
    {"cuts": {"global": [0.4], "class": [0.1, 0.2, 0.3]}},
    {"cuts": {"global": [0.4], "class": [0.1, 0.2, 0.3], "label": [0.1]}},
    {"cuts": {"global": [1.4], "class": [0.1, 0.2, 0.3], "label": [0.1] * 5}},
    {"cuts": {"global": 0.4, "class": [0.1, 0.2, 0.3], "label": [0.1] * 5}},
    {"steps": [[0.0, 1.0], [0.1, 0.2]]},  # of a sigmoid
    {"method": "isotonic"},
    {"method": "isotonic", "steps": [[0.0, 1.0], [0.2, 0.1]]},
    {"method": "isotonic", "steps": [[0.0, 0.0], [0.1, 0.2]]},
    {"method": "isotonic", "steps": [[0.0, 1.0], [0.1]]},
    {"method": "isotonic", "steps": [0.0, 1.0]},
    {"extra": 1},
]


@pytest.mark.parametrize("changes", DAMAGED)
def test_a_damaged_calibration_is_refused(changes):
    with raises(zoo.UserError, "calibration"):
        Calibration.of(calibration().stored() | changes, label_space(COUNTS))


def test_what_is_not_a_calibration_is_refused():
    for stored in ([], "platt", 5, {}):
        with raises(zoo.UserError, "calibration"):
            Calibration.of(stored, label_space(COUNTS))
    assert Calibration.of(None, label_space(COUNTS)) is None
    assert Calibration.of(calibration().stored(), label_space(COUNTS)) == calibration()
