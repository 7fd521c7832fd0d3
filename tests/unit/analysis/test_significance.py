"""The bootstrap against resamples written out document by document, with the metrics of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.batch import LabelSpace, Targets
from zoo.analysis.significance import Difference, Measurement, Predictions, Resampled, differences, resamples
from zoo.core.ragged import Lists
from zoo.training.ranking_metrics import RankingMetrics

COUNTS = [500, 101, 100, 21, 20, 5, 3, 1, 1]  # training documents; two more labels have none


def label_space(counts: list[int] = COUNTS, unseen: int = 2) -> LabelSpace:
    names = [f"l{i}" for i in range(len(counts))]
    return LabelSpace(names, counts, 1000, vocab_size=10, unseen=[f"u{i}" for i in range(unseen)])


Document = tuple[list[int], list[int], list[float]]  # truth, ranked candidates, their scores


def lists(rows: list[list[int]]) -> Lists:
    return Lists.of_sizes([len(row) for row in rows], np.array([x for row in rows for x in row], dtype=np.int64))


def measurement(space: LabelSpace, documents: list[Document], threshold: float) -> Measurement:
    truth, found, scores = ([document[i] for document in documents] for i in range(3))
    flat = np.array([score for row in scores for score in row], dtype=float)
    trained = np.array([*space.counts, *[0] * len(space.unseen)])
    weights = space.inverse_propensity().numpy()
    return Measurement(Predictions(lists(truth), lists(found), flat, trained, weights, threshold))


def slowly(space: LabelSpace, documents: list[Document], threshold: float) -> dict[str, float]:
    """What training itself reports for these documents, repeated ones counted again."""
    metric = RankingMetrics(space)
    metric.tuned_threshold.fill_(threshold)
    width = max(1, *(len(ranked) for _, ranked, _ in documents))
    labels = [ranked + [-1] * (width - len(ranked)) for _, ranked, _ in documents]
    scores = [given + [0.0] * (width - len(given)) for *_, given in documents]
    targets = Targets.from_lists([truth for truth, *_ in documents])
    metric.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels), targets)
    found = {name: value.item() for name, value in metric.compute().items()}
    undefined = {
        name for name in found if "@" in name and "/" in name and not found[f"labels/{name.partition('/')[2]}"]
    }
    return {name: np.nan if name in undefined else value for name, value in found.items()}


GROUPS = {  # by training documents
    "all": range(1000),
    "unseen": [0],
    "oneshot": [1],
    "rare": [1, 2, 3],
    "few": range(21),
    "medium": range(21, 101),
    "many": range(101, 1000),
}


def carrying(documents: list[Document], metric: str) -> int:
    """Documents with a label of the group that the metric is of; all for other metrics."""
    trained = [*COUNTS, 0, 0]
    group = GROUPS[metric.partition("/")[2] or "all"]
    return sum(any(trained[label] in group for label in truth) for truth, *_ in documents)


@st.composite
def documents_of(draw: st.DrawFn) -> list[Document]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        truth = sorted(draw(st.sets(st.integers(0, 10), max_size=7)))
        ranked = draw(st.lists(st.integers(0, 8), unique=True, max_size=9))
        levels = st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.6, 1.0])
        scores = sorted(draw(st.lists(levels, min_size=len(ranked), max_size=len(ranked))), reverse=True)
        found.append((truth, ranked, scores))
    found.append(([0, 9], [0, 1], [0.7, 0.1]))  # one at least has labels
    return found


def random_documents(seed: int, size: int = 40) -> list[Document]:
    draws = np.random.default_rng(seed)
    truths = np.random.default_rng(99)  # the same for every seed
    found = []
    for _ in range(size):
        truth = sorted(truths.choice(11, truths.integers(1, 5), replace=False).tolist())
        scores = np.sort(draws.random(8))[::-1]
        found.append((truth, draws.permutation(9)[:8].tolist(), scores.tolist()))
    return found


@given(documents=documents_of(), threshold=st.sampled_from([0.2, 0.25, 0.5, 0.9]), data=st.data())
@settings(deadline=None, max_examples=20)
def test_metrics_of_a_resample_are_those_of_its_documents_repeated(documents, threshold, data):
    space = label_space()
    one = measurement(space, documents, threshold)
    labelled = [document for document in documents if document[0]]
    assert one.size == len(labelled)
    times = data.draw(st.lists(st.integers(0, 3), min_size=one.size, max_size=one.size).filter(any))
    repeated = [document for document, count in zip(labelled, times, strict=True) for _ in range(count)]
    (values,) = one.values(np.array([times], dtype=float))
    expected = slowly(space, repeated, threshold)
    for name, value in zip(one.names, values, strict=True):
        assert value == pytest.approx(expected[name], abs=1e-12, nan_ok=True), name
    point, expected = dict(zip(one.names, one.point(), strict=True)), slowly(space, documents, threshold)
    assert point == pytest.approx({name: expected[name] for name in point}, abs=1e-12)


def test_every_metric_is_there_but_those_of_groups_without_labels():
    documents = random_documents(0)
    names = measurement(label_space(), documents, 0.3).names
    known = slowly(label_space(), documents, 0.3)
    left_out = {name for name in known if name.startswith("labels/") or "/bin" in name}
    assert set(names) == set(known) - left_out
    frequent = measurement(label_space([500] * 9), [([0, 1], [0], [0.9])], 0.3).names
    assert "macroF@5/many" in frequent
    assert not [name for name in frequent if name.endswith(("/few", "/rare", "/oneshot", "/medium", "/unseen"))]


def with_one_of_one_shot(documents: list[Document]) -> list[Document]:
    """Labels of one training document in the first document alone: many resamples have none."""
    (_, *first), *rest = documents
    return [([0, 7], *first), *((sorted({0 if i in (7, 8) else i for i in truth}), *more) for truth, *more in rest)]


@pytest.mark.parametrize("fewest", [1, 20])
def test_the_whole_bootstrap_against_a_slow_loop(monkeypatch, fewest):
    monkeypatch.setattr("zoo.analysis.significance.FEWEST", fewest)
    space, samples, seed = label_space(), 30, 7
    one, other = (with_one_of_one_shot(random_documents(i)) for i in (1, 2))
    quick = differences(
        Resampled.of([measurement(space, one, 0.3)], samples, seed),
        Resampled.of([measurement(space, other, 0.6)], samples, seed),
    )
    draws, by_sample = np.random.default_rng(seed), []
    for _ in range(samples):
        chosen = draws.integers(len(one), size=len(one))
        before, after = (
            slowly(space, [documents[i] for i in chosen], threshold)
            for documents, threshold in ((one, 0.3), (other, 0.6))
        )
        by_sample.append({name: after[name] - before[name] for name in before})
    reference, value = slowly(space, one, 0.3), slowly(space, other, 0.6)
    assert {found.metric for found in quick} == set(measurement(space, one, 0.3).names)
    for found in quick:
        expected = np.array([sample[found.metric] for sample in by_sample])
        assert np.isnan(expected).any() == (found.metric.endswith("/oneshot"))
        expected = expected[~np.isnan(expected)]
        expected = (expected - expected.mean() + value[found.metric] - reference[found.metric]).round(12)
        assert found.reference == pytest.approx(reference[found.metric], abs=1e-12)
        assert found.difference == pytest.approx(value[found.metric] - reference[found.metric], abs=1e-12)
        if carrying(one, found.metric) < fewest:
            assert np.isnan([found.low, found.high, found.p]).all()
            assert not found.is_significant
            continue
        assert [found.low, found.high] == pytest.approx(np.percentile(expected, [2.5, 97.5]), abs=1e-9)
        rarer = min((expected <= 0).sum(), (expected >= 0).sum())
        assert found.p == pytest.approx(min(1, max(2 * rarer, 1) / len(expected)))
    unsure = {found.metric.partition("/")[2] for found in quick if np.isnan(found.p)}
    assert unsure == (set() if fewest == 1 else {"oneshot", "rare", "unseen"})


def test_an_interval_stays_within_what_a_difference_can_be():
    zero = Resampled({"P@1": 0.0}, {"P@1": np.zeros(4)})
    drawn = np.array([0.0, 1.0, np.nan, 1.0])
    (found,) = differences(zero, Resampled({"P@1": 1.0}, {"P@1": drawn}))
    assert found.high == 1
    assert found.p == 1 / 3  # of the resamples that count
    assert differences(Resampled({"P@1": 1.0}, {"P@1": drawn}), zero)[0].low == -1


def test_chunks_change_nothing(monkeypatch):
    one = measurement(label_space(), random_documents(3), 0.4)
    whole = one.resampled(10, seed=1)
    monkeypatch.setattr("zoo.analysis.significance.CELLS", 3 * one.size)
    assert len(list(resamples(one.size, 10, 1, 3))) == 4
    np.testing.assert_allclose(one.resampled(10, seed=1), whole, rtol=1e-12)
    monkeypatch.setattr("zoo.analysis.significance.CELLS", 1)
    np.testing.assert_allclose(one.resampled(10, seed=1), whole, rtol=1e-12)
    assert not np.allclose(one.resampled(10, seed=2), whole)


def test_each_resample_has_as_many_documents():
    counts = np.concatenate(list(resamples(13, 50, 0, 7)))
    assert counts.shape == (50, 13)
    assert (counts.sum(axis=1) == 13).all()
    assert counts.mean(axis=0).min() > 0.6
    assert (counts == 0).any()


def test_the_same_run_twice_does_not_differ():
    documents = random_documents(4, size=80)
    one, other = (Resampled.of([measurement(label_space(), documents, 0.3)], 100, 0) for _ in range(2))
    for found in differences(one, other):
        assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)
        assert not found.is_significant


def test_a_run_that_is_always_better_has_the_smallest_p():
    truth = [[i % 9, (i + 1) % 9] for i in range(30)]
    right = [(labels, labels, [0.9, 0.8]) for labels in truth]
    wrong = [(labels, [(labels[1] + 1) % 9], [0.9]) for labels in truth]
    one, other = (Resampled.of([measurement(label_space(), d, 0.3)], 200, 0) for d in (wrong, right))
    found = {each.metric: each for each in differences(one, other)}
    assert found["P@1"].difference == 1
    assert found["P@1"].p == 1 / 200
    assert found["P@1"].is_significant
    assert {each.metric: -each.difference for each in differences(other, one)} == pytest.approx(
        {name: each.difference for name, each in found.items()}
    )


def test_rounding_of_sums_is_no_difference():
    samples = np.array([1e-17, -1e-17, 2e-17, 1e-16])
    zero = Resampled({"P@1": 0.0}, {"P@1": np.zeros(4)})
    (found,) = differences(zero, Resampled({"P@1": 1e-17, "P@3": 0.0}, {"P@1": samples, "P@3": samples}))
    assert found.p == 1


def test_several_seeds_are_the_mean_over_their_runs_in_each_resample():
    space = label_space()
    runs = [measurement(space, random_documents(seed), 0.3) for seed in (5, 6)]
    both = Resampled.of(runs, 20, 0)
    alone = [Resampled.of([run], 20, 0) for run in runs]
    for name in runs[0].names:
        assert both.point[name] == pytest.approx(np.mean([one.point[name] for one in alone]))
        np.testing.assert_allclose(both.samples[name], np.mean([one.samples[name] for one in alone], axis=0))


def test_p_is_uniform_enough_where_nothing_but_chance_differs():
    """Runs that are right in a random half of the documents each: hardly more than 5 % of pairs are significant."""
    space, significant = label_space(), 0
    for seed in range(40):
        draws = np.random.default_rng(seed)
        pair = [[([0], [0 if right else 1], [0.9]) for right in draws.random(80) < 0.5] for _ in range(2)]
        rows = [Resampled.of([measurement(space, documents, 0.5)], 200, 0) for documents in pair]
        significant += next(one for one in differences(*rows) if one.metric == "P@1").is_significant
    assert significant <= 7  # 2 expected; 7 or less with probability 0.999


def test_a_difference_at_the_level_is_not_significant():
    assert not Difference("P@1", 0, 1, 0, 1, 0.05).is_significant
    assert Difference("P@1", 0, 1, 0, 1, 0.049).is_significant
