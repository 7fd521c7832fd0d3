"""Metrics against published numbers, and against a slow reference that follows their definitions."""

import math
import warnings
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.batch import LabelSpace, Targets
from zoo.core.metrics import RANKING_METRICS, averaged_over_all
from zoo.training.ranking_metrics import GRID, RankingMetrics, frequency_bins

KS = (1, 3, 5)


def label_space(counts: list[int], unseen: int = 0, documents: int = 1000, **kwargs: float) -> LabelSpace:
    names, extra = [f"l{i}" for i in range(len(counts))], [f"u{i}" for i in range(unseen)]
    return LabelSpace(names, counts, documents, vocab_size=10, unseen=extra, **kwargs)  # type: ignore[arg-type]


@dataclass
class Document:
    truth: list[int]
    ranked: list[int]
    scores: list[float]
    counted: bool = True


def update(metric: RankingMetrics, documents: list[Document]) -> None:
    width = max(len(d.ranked) for d in documents)
    labels = [d.ranked + [-1] * (width - len(d.ranked)) for d in documents]
    scores = [d.scores + [0.0] * (width - len(d.scores)) for d in documents]
    targets, counted = Targets.from_lists([d.truth for d in documents]), torch.tensor([d.counted for d in documents])
    metric.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.long), targets, counted)


def evaluate(space: LabelSpace, truth: list[list[int]], ranked: list[list[int]]) -> dict[str, float]:
    metric = RankingMetrics(space)
    update(metric, [Document(t, r, [1.0] * len(r)) for t, r in zip(truth, ranked, strict=True)])
    return {name: value.item() for name, value in metric.compute().items()}


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def f1(hits: int, predicted: int, support: int) -> float:
    precision, recall = hits / predicted if predicted else 0.0, hits / support if support else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def reference_ranking(space: LabelSpace, documents: list[Document], k: int) -> dict[str, float]:
    w = space.inverse_propensity().tolist()
    lists: dict[str, list[float]] = {n: [] for n in ("P", "nDCG", "R", "RP", "psp", "psp*", "psn", "psn*")}
    for d in documents:
        found = [(rank, label) for rank, label in enumerate(d.ranked[:k], 1) if label in d.truth]
        ideal = sum(discount(rank) for rank in range(1, min(k, len(d.truth)) + 1))
        best = sorted((w[label] for label in d.truth), reverse=True)[:k]
        lists["P"].append(len(found) / k)
        lists["R"].append(len(found) / len(d.truth))
        lists["RP"].append(len(found) / min(k, len(d.truth)))
        lists["nDCG"].append(sum(discount(rank) for rank, _ in found) / ideal)
        lists["psp"].append(sum(w[label] for _, label in found))
        lists["psp*"].append(sum(best))
        lists["psn"].append(sum(w[label] * discount(rank) for rank, label in found) / ideal)
        lists["psn*"].append(sum(v * discount(rank) for rank, v in enumerate(best, 1)) / ideal)
    out = {f"{name}@{k}": mean(lists[name]) for name in ("P", "nDCG", "R", "RP")}
    out[f"PSP@{k}"] = sum(lists["psp"]) / sum(lists["psp*"]) if documents else 0.0
    out[f"PSnDCG@{k}"] = mean(lists["psn"]) / mean(lists["psn*"]) if documents else 0.0
    return out


def confusion(documents: list[Document], chosen: list[list[int]], label: int) -> tuple[int, int, int]:
    """Hits, predictions and support of a label."""
    pairs = [(label in picked, label in d.truth) for d, picked in zip(documents, chosen, strict=True)]
    return sum(p and t for p, t in pairs), sum(p for p, _ in pairs), sum(t for _, t in pairs)


def reference_groups(space: LabelSpace, bins: int) -> dict[str, list[int]]:
    counts = [*space.counts, *(0 for _ in space.unseen)]
    groups = {
        "all": [*range(space.num_all)],
        "unseen": [i for i, n in enumerate(counts) if n == 0],
        "oneshot": [i for i, n in enumerate(counts) if n == 1],
        "rare": [i for i, n in enumerate(counts) if n in (1, 2, 3)],
        "few": [i for i, n in enumerate(counts) if n <= 20],
        "medium": [i for i, n in enumerate(counts) if 20 < n <= 100],
        "many": [i for i, n in enumerate(counts) if n > 100],
    }
    trained = sorted((i for i, n in enumerate(counts) if n > 0), key=lambda i: -counts[i])
    bins = max(min(bins, len(trained)), 1)
    shares: list[list[int]] = [[] for _ in range(bins)]
    for place, label in enumerate(trained):
        shares[place * bins // len(trained)].append(label)
    shares[-1] += [i for i, n in enumerate(counts) if n == 0]
    return groups | {f"bin{i:02d}": share for i, share in enumerate(shares, 1)}


def reference(space: LabelSpace, documents: list[Document], tuned: float, bins: int) -> dict[str, float]:
    documents = [d for d in documents if d.counted and d.truth]
    out: dict[str, float] = {}
    for k in KS:
        out |= reference_ranking(space, documents, k)
    groups = reference_groups(space, bins)
    for group in ("unseen", "rare", "few", "medium", "many"):
        alone = [replace(d, truth=[i for i in d.truth if i in groups[group]]) for d in documents]
        alone = [replace(d, ranked=[i for i in d.ranked if i in groups[group]]) for d in alone if d.truth]
        for k in KS:
            found = reference_ranking(space, alone, k)
            out |= {f"{name}@{k}/{group}": found[f"{name}@{k}"] for name in ("P", "nDCG", "R")}
    top = [d.ranked[:5] for d in documents]
    for group, labels in reference_groups(space, bins).items():
        cells = [(t, p, y) for t, p, y in (confusion(documents, top, label) for label in labels) if y]
        out[f"macroP@5/{group}"] = mean([t / p if p else 0.0 for t, p, _ in cells])
        out[f"macroR@5/{group}"] = mean([t / y for t, _, y in cells])
        out[f"macroF@5/{group}"] = mean([f1(*cell) for cell in cells])
        out[f"labels/{group}"] = len(cells)
    for name, threshold in (("0.5", 0.5), ("tuned", tuned)):
        above = [[i for i, s in zip(d.ranked, d.scores, strict=True) if s >= threshold] for d in documents]
        cells = [confusion(documents, above, label) for label in range(space.num_all)]
        out[f"microF1@{name}"] = f1(sum(c[0] for c in cells), sum(c[1] for c in cells), sum(c[2] for c in cells))
        out[f"macroF1@{name}"] = mean([f1(*cell) for cell in cells if cell[2]])
    return out


SCORES = st.one_of(st.integers(0, GRID).map(lambda j: j / GRID), st.floats(0, 1, width=32))


@st.composite
def documents_of(draw: st.DrawFn, num_labels: int, num_all: int) -> Document:
    truth = draw(st.sets(st.integers(0, num_all - 1), max_size=8))
    ranked = draw(st.permutations(range(num_labels)))[: draw(st.integers(0, num_labels))]
    scores = sorted((draw(SCORES) for _ in ranked), reverse=True)
    return Document(sorted(truth), ranked, scores, draw(st.booleans()))


@st.composite
def cases(draw: st.DrawFn) -> tuple[LabelSpace, list[Document]]:
    counts = draw(st.lists(st.sampled_from([0, 1, 5, 20, 21, 100, 101, 500]), min_size=1, max_size=14))
    space = label_space(counts, unseen=draw(st.integers(0, 3)))
    documents = st.lists(documents_of(space.num_labels, space.num_all), min_size=1, max_size=8)
    return space, draw(documents)


def assert_same(actual: dict[str, Tensor], expected: dict[str, float]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.item() == pytest.approx(expected[name], abs=1e-12), name


@given(case=cases(), tuned=SCORES, bins=st.sampled_from([1, 3, 10]))
@settings(deadline=None, max_examples=200)
def test_equals_the_reference(case: tuple[LabelSpace, list[Document]], tuned: float, bins: int) -> None:
    space, documents = case
    metric = RankingMetrics(space, bins=bins)
    metric.tuned_threshold.fill_(tuned)
    update(metric, documents)
    results = metric.compute()
    assert_same(results, reference(space, documents, tuned, bins))
    assert all(0 <= value <= 1 + 1e-12 for name, value in results.items() if not name.startswith("labels/"))


@given(case=cases())
@settings(deadline=None, max_examples=50)
def test_labels_without_test_documents_can_count_as_zero(case: tuple[LabelSpace, list[Document]]) -> None:
    space, documents = case
    metric = RankingMetrics(space)
    update(metric, documents)
    found = {name: value.item() for name, value in metric.compute().items()}
    counts = np.array([*space.counts, *(0 for _ in space.unseen)])
    results = averaged_over_all(found, counts)
    top = [d.ranked[:5] for d in documents if d.counted and d.truth]
    kept = [d for d in documents if d.counted and d.truth]
    for group, labels in reference_groups(space, 1).items():
        if not group.startswith("bin"):
            expected = mean([f1(*confusion(kept, top, label)) for label in labels])
            assert results[f"macroF@5/{group}"] == pytest.approx(expected)
            assert results[f"labels/{group}"] == len(labels)
    assert {name for name in found if name not in results} == {name for name in found if "/bin" in name}
    size = found["labels/all"] / space.num_all
    assert results["macroF1@0.5"] == pytest.approx(found["macroF1@0.5"] * size)
    assert results["P@1"] == found["P@1"]


@given(case=cases(), order=st.randoms(use_true_random=False), cut=st.integers(0, 8))
@settings(deadline=None, max_examples=50)
def test_order_and_batching_do_not_matter(case: tuple[LabelSpace, list[Document]], order: Random, cut: int) -> None:
    space, documents = case
    whole, parts = RankingMetrics(space), RankingMetrics(space)
    update(whole, documents)
    shuffled = order.sample(documents, len(documents))
    for part in (shuffled[:cut], shuffled[cut:]):
        if part:
            update(parts, part)
    assert_same(parts.compute(), {name: value.item() for name, value in whole.compute().items()})
    assert parts.best_threshold() == whole.best_threshold()


@given(case=cases())
@settings(deadline=None, max_examples=50)
def test_best_threshold_is_the_best_of_the_grid(case: tuple[LabelSpace, list[Document]]) -> None:
    space, documents = case
    metric = RankingMetrics(space)
    update(metric, documents)
    kept = [d for d in documents if d.counted and d.truth]
    pairs = [(s, label in d.truth) for d in kept for label, s in zip(d.ranked, d.scores, strict=True)]
    positives = sum(len(d.truth) for d in kept)

    def micro_f1(threshold: float) -> float:
        hits = sum(t for s, t in pairs if s >= threshold)
        return 2 * hits / max(sum(s >= threshold for s, _ in pairs) + positives, 1)

    curve = [micro_f1(j / GRID) for j in range(GRID + 1)]
    first = last = curve.index(max(curve))
    while last < GRID and curve[last + 1] == curve[first]:
        last += 1
    assert metric.best_threshold() == ((first + last) // 2) / GRID

    metric.reset()
    metric.tuned_threshold.fill_(((first + last) // 2) / GRID)
    update(metric, documents)
    assert metric.compute()["microF1@tuned"].item() == pytest.approx(max(curve), abs=1e-12)


COUNTS = [100, 10, 1, 0]
WORKED = ([[0, 2], [1]], [[0, 1, 2], [3, 1, 0]])


def test_worked_example() -> None:
    results = evaluate(label_space(COUNTS), *WORKED)
    expected = {"P@1": 0.5, "nDCG@1": 0.5, "PSP@1": 0.169259, "P@3": 0.5, "nDCG@3": 0.775325, "PSP@3": 1.0}
    expected |= {"PSnDCG@3": 0.642599, "R@1": 0.25, "R@3": 1.0, "RP@1": 0.5, "RP@3": 1.0, "P@5": 0.3}
    assert {name: results[name] for name in expected} == pytest.approx(expected, abs=5e-7)


def test_unnormalized_psp_of_the_worked_example() -> None:
    metric = RankingMetrics(label_space(COUNTS))
    update(metric, [Document(t, r, [1.0] * 3) for t, r in zip(*WORKED, strict=True)])
    psp = metric.sums[RANKING_METRICS.index("PSP"), 1] / (3 * metric.documents)
    assert psp.item() == pytest.approx(2.038389, abs=5e-7)


def test_an_unseen_label_can_only_be_hit_if_it_is_scored() -> None:
    space = label_space([100, 10], unseen=1)
    assert evaluate(space, [[2]], [[2, 0]])["R@5"] == 0
    found = evaluate(replace(space, unseen_texts=["a text"]), [[2]], [[0, 2]])
    assert (found["R@5"], found["R@1"], found["R@1/unseen"], found["P@1/many"]) == (1, 0, 1, 0)


def test_no_documents_give_zeros_without_warnings() -> None:
    metric = RankingMetrics(label_space(COUNTS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(value == 0 for value in metric.compute().values())
        update(metric, [Document([], [0], [1.0]), Document([0], [0], [1.0], counted=False)])
        assert all(value == 0 for value in metric.compute().values())


def test_low_precision_does_not_affect_counts_and_threshold() -> None:
    metric = RankingMetrics(label_space(COUNTS))
    metric.tuned_threshold.fill_(0.123)
    before = metric.weights.clone()
    torch.nn.ModuleList([metric]).to(torch.bfloat16).half()
    assert torch.equal(metric.weights, before)
    assert metric.tuned_threshold.item() == 0.123
    assert metric.sums.dtype == torch.float64
    assert metric.predicted.dtype == torch.int64
    metric.reset()
    assert metric.sums.dtype == torch.float64


def test_state_holds_the_tuned_threshold_only() -> None:
    metric = RankingMetrics(label_space(COUNTS))
    metric.tuned_threshold.fill_(0.25)
    metric.reset()
    assert metric.state_dict() == {"tuned_threshold": torch.tensor(0.25, dtype=torch.float64)}
    other = RankingMetrics(label_space(COUNTS))
    other.load_state_dict(metric.state_dict())
    assert other.tuned_threshold == 0.25


def test_metric_names_contain_threshold_and_cutoff() -> None:
    metric = RankingMetrics(label_space([1] * 4), ks=(2,), macro_k=2, bins=3, threshold=0.25)
    names = metric.compute().keys()
    assert {"P@2", "macroF@2/bin03", "microF1@0.25", "macroF1@tuned"} <= names
    assert "macroF@2/bin04" not in names


def test_bins_are_near_equal_and_sorted_by_count() -> None:
    space = label_space([5, 50, 0, 500, 7, 9, 30], unseen=2)
    bins = frequency_bins(space, 4)
    assert bins.tolist() == [3, 0, 3, 0, 2, 2, 1, 3, 3]
    assert frequency_bins(label_space([3, 2]), 10).tolist() == [0, 1]
