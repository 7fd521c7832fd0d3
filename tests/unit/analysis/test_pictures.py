"""What pictures show is what the data say."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zoo.analysis.canvas import INK, shortened, svg, svg_file
from zoo.analysis.curves import Span, spans, training_curves
from zoo.analysis.evidence import Evidence, Example, Points
from zoo.analysis.model_pictures import importances, running_median
from zoo.analysis.pictures import bins, experts, label_correlation, label_distribution, norms, of_run, tail_f1, tsne
from zoo.analysis.tail import TailPair
from zoo.core.run_folder import RunFolder

DRAWS = np.random.default_rng(0)
DOCUMENTS = np.array([300, 150, 50, 30, 5, 4, 2, 1, 1, 0])


def texts(figure):
    """All that can be read in a picture."""
    root = ET.fromstring(svg(figure, "x"))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def heights(axis):
    return [[bar.get_height() for bar in bars] for bars in axis.containers]


def metrics_of(values, sizes=None):
    sizes = sizes or [3] * len(values)
    found = {f"macroP@5/bin{i:02d}": value for i, value in enumerate(values, 1)}
    return found | {f"labels/bin{i:02d}": float(size) for i, size in enumerate(sizes, 1)} | {"macroP@5/all": 0.9}


def some_points(labels=(0, 4), width=6, each=8):
    of = np.repeat(labels, 2 * each)
    generated = np.tile(np.repeat([False, True], each), len(labels))
    return Points(DRAWS.normal(size=(len(of), width)) + of[:, None], of, generated)


def test_labels_are_drawn_by_falling_frequency_with_the_shares_of_classes():
    figure = label_distribution(DRAWS.permutation(DOCUMENTS))
    drawn = [stairs.get_data() for stairs in figure.axes[0].patches]
    assert [data.values.tolist() for data in drawn] == [[300, 150], [50, 30], [5, 4, 2, 1]]
    assert [data.edges.tolist() for data in drawn] == [[0, 1, 2], [2, 3, 4], [4, 5, 6, 7, 9]]
    assert "many, over 100: 22 % of labels, 83 % of pairs" in texts(figure)
    assert "few, up to 20: 56 % of labels, 2 % of pairs" in texts(figure)
    assert label_distribution(np.zeros(3, dtype=int)) is None
    assert label_distribution(np.zeros(0, dtype=int)) is None


def test_correlations_are_drawn_without_those_of_a_label_with_itself():
    correlation = np.array([[1, 0.5, -0.2], [0.5, 1, 0.1], [-0.2, 0.1, 1]], dtype=np.float32)
    figure = label_correlation(correlation, np.array([30, 20, 1]))
    shown = figure.axes[0].images[0].get_array()
    assert np.isnan(np.diag(shown.filled(np.nan))).all()
    assert shown[0, 1] == pytest.approx(0.5)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["30", "20", "1"]
    assert label_correlation(None, DOCUMENTS) is None
    assert label_correlation(np.ones((1, 1)), DOCUMENTS[:1]) is None


def test_bars_of_bins_have_the_heights_of_the_metrics():
    one = bins({"a run": metrics_of([0.5, 0.25, 0.1])})
    assert heights(one.axes[0]) == [[50, 25, 10]]
    two = bins({"a": metrics_of([0.5, 0.25]), "b": metrics_of([0.4, 0.0], [3, 0])})
    first, second = heights(two.axes[0])
    assert first == [50, 25]
    assert second[0] == 40
    assert np.isnan(second[1])  # no label of that bin was measured: not the same as 0
    assert {"a", "b"} <= set(texts(two))
    assert bins({"a": {"P@1": 0.5}}) is None
    assert bins({}) is None


def test_more_runs_than_bars_can_show_are_lines():
    figure = bins({f"run {i}": metrics_of([0.1 * i, 0.05 * i]) for i in range(1, 9)})
    lines = figure.axes[0].lines
    assert len(lines) == 8
    assert lines[7].get_ydata().tolist() == pytest.approx([80, 40])
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


def test_a_few_tail_labels_have_bars_ordered_by_documents():
    one, other = np.array([0.2, 0.4, 0.6]), np.array([0.3, 0.1, 0.6])
    figure = tail_f1(TailPair(["x", "$y$", "z"], np.array([2, 9, 4]), one, other), ("A", "B"))
    assert heights(figure.axes[0]) == [pytest.approx([40, 60, 20]), pytest.approx([10, 60, 30])]
    assert figure.axes[0].get_title().startswith("3 labels: 1 better")
    assert {"$y$", "A", "B"} <= set(texts(figure))
    assert tail_f1(TailPair([], np.zeros(0), np.zeros(0), np.zeros(0)), ("A", "B")) is None


def test_some_more_have_bars_over_their_documents():
    documents = np.repeat([7, 3, 1], 10)
    pair = TailPair([str(i) for i in range(30)], documents, DRAWS.random(30), DRAWS.random(30))
    figure = tail_f1(pair, ("A", "B"))
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["7", "3", "1"]
    assert figure.axes[0].get_xticks().tolist() == [0, 10, 20]


def test_many_tail_labels_are_counted_in_cells():
    one, other = DRAWS.random(200), DRAWS.random(200)
    figure = tail_f1(TailPair([str(i) for i in range(200)], np.ones(200, dtype=int), one, other), ("A", "B"))
    assert figure.axes[0].collections[0].get_array().sum() == 200
    wins = [str((one > other).sum()), str((other > one).sum())]
    assert re.findall(r"(\d+)(?: better| in the second)", figure.axes[0].get_title()) == wins


def test_lengths_of_weights_have_a_running_median():
    documents = np.array([1, 1, 1, 10, 10, 100, 0])
    lengths = np.array([1.0, 2.0, 6.0, 4.0, 6.0, 9.0, 99.0])
    figure = norms(documents, lengths)
    axis = figure.axes[0]
    assert len(axis.collections[0].get_offsets()) == 6  # without the label that training has not seen
    x, y = axis.lines[0].get_data()
    medians = dict(zip(x.tolist(), y.tolist(), strict=True))
    assert (medians[1.0], medians[11.0], medians[100.0]) == (2.0, 5.0, 9.0)
    assert 4.0 not in medians  # no label is near
    assert any(text.startswith("rank correlation 0.") for text in texts(figure))
    assert norms(documents, None) is None
    assert norms(np.array([3]), np.array([1.0])) is None
    assert norms(np.array([3, 3]), np.array([1.0, 1.0])) is not None  # nothing to correlate


def test_a_median_is_over_labels_of_nearly_as_many_documents():
    x, y = running_median(np.array([8, 10, 12, 13]), np.array([1.0, 2.0, 3.0, 50.0]))
    assert dict(zip(x.tolist(), y.tolist(), strict=True))[10.0] == 2.0  # from 8 to 12.5


def test_many_points_are_drawn_as_an_image():
    documents, lengths = DRAWS.integers(1, 100, 4000), DRAWS.random(4000)
    text = svg(norms(documents, lengths), "x")
    assert "data:image/png;base64" in text
    assert len(text) < 300_000


def test_features_are_spread_out_by_label():
    points = some_points()
    figure = tsne(points, [f"label {i}" for i in range(5)], np.arange(5) * 1000)
    made, real, *_ = (group.get_offsets() for group in figure.axes[0].collections)
    assert len(real) == len(made) == 8
    assert "label 4: 4,000 documents" in texts(figure)
    assert "generated" in texts(figure)
    assert tsne(None, [], DOCUMENTS) is None
    few = Points(points.values[:3], points.labels[:3], points.generated[:3])
    assert tsne(few, ["a"], DOCUMENTS) is None
    broken = Points(np.full((20, 3), np.nan), np.zeros(20, dtype=int), np.zeros(20, dtype=bool))
    assert tsne(broken, ["a"], DOCUMENTS) is None


def test_importances_are_bars_of_the_largest():
    shares = {f"feature_{i}": 2.0**-i for i in range(1, 30)}
    text = svg(importances(shares), "importances")
    assert "feature 1<" in text
    assert "feature 20<" in text
    assert "feature 21<" not in text
    assert importances({}) is None


def test_experts_are_a_matrix_with_numbers():
    divergence = np.array([[0, 0.125], [0.25, 0]])
    figure = experts(("A1", "A2"), divergence)
    assert figure.axes[0].images[0].get_array().tolist() == divergence.tolist()
    assert {"0.125", "0.25", "A1", "A2"} <= set(texts(figure))
    assert experts((), None) is None


ROWS = [
    {"step": "0", "stage": "0"},
    {"step": "9", "train/main/loss_step": "8.0"},
    {"step": "10", "train/main/loss_epoch": "7.0", "val/P@1": "0.25", "val/nDCG@5": "0.2"},
    {"step": "20", "train/main/loss_epoch": "6.0", "val/P@1": "0.5", "val/nDCG@5": "0.4"},
    {"step": "21", "stage": "1"},
    {"step": "21", "stage": "2"},
    {"step": "40", "train/tune/loss_epoch": "3.0", "val/P@1": "0.75", "val/nDCG@5": ""},
]


def test_stages_begin_and_end_where_the_log_says():
    wanted = [Span("main", 0, 21), Span("bank", 21, 21), Span("tune", 21, 40)]
    assert spans(ROWS, ["main", "bank", "tune"]) == wanted
    assert [span.name for span in spans(ROWS, [])] == ["stage 1", "stage 2", "stage 3"]
    assert spans([], []) == []
    continued = [*ROWS, {"step": "50", "stage": "2"}]  # of a run that was stopped and went on
    assert spans(continued, [])[2].start == 21


def test_curves_have_the_values_of_the_log_and_mark_stages():
    figure = training_curves(ROWS, ["main", "bank", "tune"])
    losses, checks = figure.axes
    assert [line.get_data()[1].tolist() for line in losses.lines[:3]] == [[8], [7, 6], [3]]
    assert len({line.get_color() for line in losses.lines[:3]}) == 2  # one for each stage
    by_name = {line.get_label(): line.get_data() for line in checks.lines}
    assert by_name["P@1"][0].tolist() == [10, 20, 40]
    assert by_name["P@1"][1].tolist() == [25, 50, 75]
    assert by_name["nDCG@5"][1].tolist() == [20, 40]
    assert "PSP@5" not in by_name
    shaded = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in losses.patches]
    assert shaded == [(0, 21), (21, 40)]
    assert losses.lines[-1].get_xdata() == [21, 21]
    assert {"main", "bank → tune"} <= set(texts(figure))


def test_what_a_linear_model_logs_is_no_curve():
    assert training_curves([]) is None
    assert training_curves([{"step": "0", "val/P@1": "0.5", "val/nDCG@5": "0.4"}]) is None
    assert training_curves([{"step": "0", "test/P@1": "0.5"}, {"step": "x", "val/P@1": "nan"}]) is None


def test_the_same_data_make_the_same_file():
    points = some_points()
    draw = {
        "norms": lambda: norms(DOCUMENTS, np.linspace(1, 2, 10)),
        "tsne": lambda: tsne(points, ["a"] * 5, DOCUMENTS),
        "bins": lambda: bins({"a": metrics_of([0.5, 0.25])}),
    }
    for name, make in draw.items():
        assert svg_file(make(), name) == svg_file(make(), name)


def test_ids_of_pictures_on_one_page_differ():
    figure = bins({"a": metrics_of([0.5])})
    ids = [{node.get("id") for node in ET.fromstring(svg(figure, name)).iter()} - {None} for name in ("one", "two")]
    assert ids[0]
    assert not ids[0] & ids[1]
    text = svg(figure, "one")
    assert INK not in text
    assert "currentColor" in text
    assert "currentColor" not in svg_file(figure, "one")


@pytest.mark.parametrize("name", ["$x_1$", "a$b$c$", "<b>&amp;", 'id="x"', "Öl für Übersee, 石油", "\\$"])
def test_names_stay_as_they_are(name):
    figure = bins({name: metrics_of([0.5]), "other": metrics_of([0.5])})
    assert name in texts(figure)


def test_long_names_are_cut():
    assert shortened("a  long\nname", 8) == "a long…"
    assert len(shortened("x" * 100)) == 24


def pictures_in(folder):
    run = RunFolder.read(folder) if (folder / "metrics.json").exists() else RunFolder(folder)
    return set(of_run(run, Evidence.load(run)))


def test_a_run_folder_has_the_pictures_that_it_has_data_for(tmp_path):
    assert pictures_in(tmp_path) == set()
    (tmp_path / "metrics.json").write_text(json.dumps({"metrics": metrics_of([0.5, 0.2])}))
    (tmp_path / "metrics.csv").write_text("step,val/P@1\n1,0.5\n2,0.6\n3,0.7,cut off")
    assert pictures_in(tmp_path) == {"bins", "curves"}
    write_labels(tmp_path)
    example = Example("d1", "right", [" a"], [0], [0], [0.5])
    Evidence(
        norms=np.ones(9),
        correlated=np.arange(3),
        correlation=np.eye(3),
        points=some_points(),
        experts=("A", "B"),
        divergence=np.eye(2),
        examples=(example,),
    ).save(RunFolder(tmp_path))
    every = {"label_distribution", "label_correlation", "bins", "norms", "tsne", "experts", "curves"}
    assert pictures_in(tmp_path) == every
    Evidence().save(RunFolder(tmp_path))  # of a model that has none of it
    assert pictures_in(tmp_path) == {"label_distribution", "bins", "curves"}


def write_labels(folder):
    names = [f"label {i}" for i in range(len(DOCUMENTS))]
    table = {"label": names, "text": [""] * len(names), "documents": DOCUMENTS, "weight": np.ones(len(names))}
    pq.write_table(pa.table(table), folder / "labels.parquet")


@pytest.mark.parametrize("name", ["evidence.npz", "config.yaml", "labels.parquet"])
def test_a_broken_file_is_named_and_left_out(tmp_path, caplog, name):
    write_labels(tmp_path)
    (tmp_path / name).write_text("[broken")
    assert pictures_in(tmp_path) == ({"label_distribution"} if name != "labels.parquet" else set())
    (line,) = caplog.messages
    assert str(tmp_path) in line
    assert name in line


def test_evidence_about_other_labels_is_left_out(tmp_path, caplog):
    Evidence(norms=np.ones(99)).save(RunFolder(tmp_path))
    write_labels(tmp_path)
    assert Evidence.load(RunFolder(tmp_path)) is None
    (tmp_path / "labels.parquet").unlink()
    assert Evidence.load(RunFolder(tmp_path)) is None
    assert all("evidence.npz" in line and "labels.parquet" in line for line in caplog.messages)
