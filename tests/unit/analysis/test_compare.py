"""Runs in rows: means, deviations, what is best, what papers say, and the four shapes of the table."""

import csv
import io
import json
from html.parser import HTMLParser
from statistics import stdev

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.errors import assert_message, raises
from zoo.analysis.comparison import compare_runs, every_metric, read_papers
from zoo.analysis.tables import comparison_sheets, number
from zoo.analysis.templating import render
from zoo.commands.compare import compare
from zoo.core import run_folder
from zoo.core.errors import UserError
from zoo.core.run_search import read_runs

CONFIG = "seed_everything: {seed}\nname: {name}\nruns: {folder}\nmodel:\n  head: {{class_path: heads.Linear, \
init_args: {{dropout: {dropout}}}}}\nstages:\n- {{name: main, epochs: {epochs}}}\n"


@pytest.fixture
def make(tmp_path):
    """Write a run folder with these metrics and facts."""

    def run(experiment="joint", seed=0, metrics=None, dropout=0.1, epochs=3, place=None, **facts):
        folder = tmp_path / (place or f"runs/{experiment}/t{seed}")
        folder.mkdir(parents=True)
        known = {"data": "reuters", "sample": False, "split": "test", "limit_train": None, "head": "Linear"}
        known |= {"backbone": "CNN", "experiment": experiment, "seed": seed, "seconds": 250.4, "parameters": 12345}
        content = known | facts | {"metrics": {"P@1": 0.5, "PSP@5": 0.25} if metrics is None else metrics}
        (folder / "metrics.json").write_text(json.dumps(content))
        text = CONFIG.format(seed=seed, name=experiment, folder=tmp_path, dropout=dropout, epochs=epochs)
        (folder / "config.yaml").write_text(text)
        return folder

    return run


@pytest.fixture
def shown(tmp_path, capsys):
    """Run the command on all run folders; returns what it prints."""

    def run(**options):
        capsys.readouterr()
        compare([str(tmp_path / "runs")], **options)
        return capsys.readouterr().out

    return run


def table(text):
    """Rows of the first csv or markdown table."""
    if text.startswith("#"):
        lines = [line for line in text.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return list(csv.reader(io.StringIO(text)))


def test_means_and_deviations_over_seeds(make, shown):
    values = [0.9, 0.93, 0.955]
    for seed, value in enumerate(values):
        make(seed=seed, metrics={"P@1": value}, seconds=200 + seed)
    (row,) = csv.DictReader(io.StringIO(shown(format="csv")))
    assert float(row["P@1"]) == pytest.approx(100 * np.mean(values), abs=1e-6)
    assert float(row["P@1±"]) == pytest.approx(100 * np.std(values, ddof=1), abs=1e-6)
    assert (row["data"], row["experiment"], row["runs"], row["seconds"], row["seconds±"]) == (
        *("reuters", "joint", "3", "201", "1"),
    )
    assert row["parameters±"] == "0"
    _, _, cells = table(shown(format="markdown"))
    assert cells == ["joint", "3", f"92.83 ± {100 * stdev(values):.2f}", "201 ± 1.0", "12,345"]


def test_runs_on_different_data_have_tables_of_their_own(make, shown):
    make("a", limit_train=6000)
    make("b", split="val")
    make("c", sample=True)
    make("d", limit_train=6000)
    text = shown(format="markdown", by="experiment")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "### reuters, 6,000 documents (in %)",
        "### reuters, validation (in %)",
        "### sample (in %)",
    ]


def test_the_best_is_bold_within_its_data_at_full_precision(make, shown):
    make("a", metrics={"P@1": 0.50001, "PSP@5": 0.2, "labels/all": 9, "threshold": 0.129})
    make("b", metrics={"P@1": 0.50002, "PSP@5": 0.2, "labels/all": 8, "threshold": 0.3}, seconds=999)
    make("c", metrics={"P@1": 0.9, "PSP@5": 0.9}, data="aapd")
    first, _, *rows = table(shown(format="markdown", columns="all", published=False))
    assert first == ["experiment", "P@1", "PSP@5", "labels/all", "threshold", "seconds", "parameters"]
    assert rows[0][1:5] == ["50.00", "**20.00**", "9", "0.129"]
    assert rows[1][1:6] == ["**50.00**", "**20.00**", "8", "0.300", "999"]
    assert rows[-1][1:3] == ["90.00", "90.00"]  # alone on its data: nothing to be better than
    assert "<strong>20.00</strong>" in shown(format="html", published=False)


def test_a_metric_that_a_run_lacks_stays_empty(make, shown):
    make("a", metrics={"P@1": 0.5})
    make("b", metrics={"P@1": 0.4, "PSP@5": 0.3})
    *_, one, other = table(shown(format="markdown", columns="P@1,PSP@5"))
    assert one == ["a", "**50.00**", ""]
    assert other == ["b", "40.00", "**30.00**"]


def test_rows_by_seed_run_and_settings(make, shown):
    for seed in range(2):
        make("a", seed, epochs=3 + seed)
    assert len(table(shown(format="markdown", by="data,experiment,seed"))) == 4
    header, _, *rows = table(shown(format="markdown", by="stages.main.epochs,head"))
    assert header[:2] == ["stages.main.epochs", "head"]
    assert [row[:2] for row in rows] == [["3", "Linear"], ["4", "Linear"]]
    assert len(table(shown(format="markdown", by="run"))) == 4
    assert table(shown(format="markdown", by="data"))[2][0] == "reuters"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"by": "experimnt"}, ["`by=experimnt`", "experiment"]),
        ({"by": "model.head.dropuot"}, ["model.head.dropout"]),
        ({"by": "data,epochs"}, ["stages.main.epochs"]),
        ({"by": " , "}, ["`by`"]),
        ({"columns": "P@2"}, ["`columns=P@2`", "P@1"]),
        ({"columns": "P@1,secnds"}, ["seconds"]),
        ({"out": "table.xlsx"}, ["`out=table.xlsx`", ".md, .csv, .html"]),
        ({"out": "no/such/folder.md"}, ["no/such/folder.md"]),
        ({"out": "/", "format": "csv"}, ["cannot write /"]),
        ({"samples": 0}, ["`samples=0`"]),
        ({"seed": -1, "significance": True}, ["`seed=-1`"]),
        ({"against": "jont"}, ["`against=jont`", "joint"]),
    ],
)
def test_an_invalid_option_is_named(make, shown, options, names):
    make()
    with raises(UserError, *names):
        shown(**options)


def test_rows_that_mix_settings_are_told(make, shown, tmp_path, capsys):
    make("a", 0, dropout=0.1)
    make("a", 1, dropout=0.2)
    make("b", 0)
    make("b", 1)
    compare([str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert "a, reuters: averaged over 2 runs that differ in model.head.dropout" in line
    assert "`by=data,experiment,model.head.dropout`" in line
    compare([str(tmp_path)], by="data,experiment,model.head.dropout")
    assert capsys.readouterr().err == ""
    compare([str(tmp_path)], by="data,model.head.dropout")
    assert "averaged over 3 runs that differ in experiment;" in capsys.readouterr().err


def test_the_same_seed_twice_is_told(make, tmp_path, capsys):
    make(seed=4, place="one")
    make(seed=4, place="two")
    compare([str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert_message(line, "2 runs", "seed, 4", "`by=data,experiment,run`")


def test_many_rows_that_mix_settings_are_told_in_one_line(make, tmp_path, capsys):
    for name in "abcde":
        make(name, 0, dropout=0.1)
        make(name, 1, dropout=0.2, epochs=4 if name == "a" else 3)
    make("f", 0, place="runs/f/1")
    make("f", 0, place="runs/f/2")
    make("g", 0)
    make("g", 1)
    compare([str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "6 rows: averaged over runs that differ in model.head.dropout, stages.main.epochs or have the same seed;"
        in line
    )
    assert "`by=data,experiment,model.head.dropout,run`" in line
    compare([str(tmp_path / "runs" / name) for name in "abc"])
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_of_a_class_that_differs_the_settings_are_not_named(make, tmp_path, capsys):
    make(seed=0)
    other = make(seed=1, head="Wide")
    (other / "config.yaml").write_text(
        "seed_everything: 1\nmodel:\n  head: {class_path: Wide, init_args: {heads: 2}}\n"
    )
    compare([str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert "differ in head, stages.main.epochs;" in line


def test_settings_are_not_parsed_where_nothing_needs_them(make, shown, monkeypatch):
    def fail(text):
        raise AssertionError

    for seed in range(3):
        make("a", seed)
        make("b", seed)
    monkeypatch.setattr(run_folder, "parse_yaml", fail)
    assert "± 0.00" in shown()
    assert "± 0.00" in shown(by="data,head,backbone,experiment")
    with pytest.raises(AssertionError):
        shown(by="model.head.dropout")


def test_columns_in_order_with_those_of_parts_last(make, shown, tmp_path):
    names = ["A1/P@1", "P@1", "macroF@5/few", "labels/few", "A1/macroF@5/few", "clusters@beam"]
    make(metrics=dict.fromkeys(names, 0.5))
    expected = ["P@1", "macroF@5/few", "labels/few", "clusters@beam", "A1/P@1", "A1/macroF@5/few"]
    assert every_metric(read_runs([tmp_path])) == expected
    header = table(shown(format="markdown", columns="all"))[0]
    assert header == ["experiment", *expected, "seconds", "parameters"]
    assert table(shown(format="markdown", columns="seconds,P@1"))[0] == ["experiment", "seconds", "P@1"]
    assert table(shown(format="markdown"))[0] == ["experiment", "P@1", "macroF@5/few", "seconds", "parameters"]


def test_memory_where_it_is_known(make, shown):
    make("a", peak_memory_mb={"host": 1031.2})
    make("b")
    header, _, one, other = table(shown(format="markdown"))
    assert header[-1] == "memory, MB"
    assert [one[-1], other[-1]] == ["1,031", ""]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [("P@1", 0.12345, "12.35"), ("seconds", 9.96, "10.0"), ("seconds", 1407.4, "1,407"), ("labels/few", 2.5, "2.5")],
)
def test_numbers(column, value, text):
    assert number(column, value) == text


def test_papers_stand_apart_and_do_not_compete(make, shown):
    make("a", data="eurlex-4k", metrics={"P@1": 0.1, "PSP@5": 0.1})
    make("b", data="eurlex-4k", metrics={"P@1": 0.2, "PSP@5": 0.2})
    papers = read_papers("eurlex-4k")
    text = shown(format="markdown", columns="P@1")
    _, _, *rows = table(text)
    assert rows[1] == ["b", "**20.00**"]
    assert len(rows) == 2 + sum("P@1" in paper.values for paper in papers)
    assert ["*LSFA (LSFA, Tables 4 and 5)*", "*83.75*"] in rows
    assert sum(row[1].startswith("**") for row in rows) == 1
    assert text.count("published.csv") == 1
    assert "13,905 (HTTN)" in text
    html = shown(format="html", columns="P@1")
    assert html.index('<tbody class="papers">') > html.index("<strong>20.00</strong>")
    assert "<strong>" not in html[html.index('<tbody class="papers">') :]
    lines = [line.split() for line in shown(columns="P@1").splitlines()]
    assert lines.index(["b", "20.00"]) < lines.index(["LSFA", "(LSFA,", "Tables", "4", "and", "5)", "83.75"])
    assert "LSFA" not in shown(format="markdown", columns="P@1", published=False)


def test_a_micro_f1_without_a_threshold_counts_as_of_one_half(make, shown):
    make(data="eurlex57k", metrics={"microF1@0.5": 0.5})
    assert ["*BERT-base (Chalkidis et al. 2019)*", "*73.2*"] in table(shown(format="markdown", columns="microF1@0.5"))


@pytest.mark.parametrize("part", [{"limit_train": 100}, {"sample": True}, {"split": "val"}, {"data": "reuters"}])
def test_nothing_of_papers_beside_a_part_of_a_corpus(make, shown, part):
    make(**{"data": "eurlex-4k"} | part)
    assert "papers" not in shown()


def test_csv_holds_everything_and_comes_back(make, shown, tmp_path):
    make('a, "b" | c', metrics={"P@1": 1 / 3, "labels/all": 12, "threshold": 0.129, "A1/P@1": 0.1}, place="runs/odd")
    make("eurlex", data="eurlex57k", metrics={"P@5": 0.5}, place="runs/other")
    compare([str(tmp_path)], out=str(tmp_path / "all.csv"))
    ours, theirs, paper = csv.DictReader((tmp_path / "all.csv").read_text("utf8").splitlines())
    assert ours["experiment"] == 'a, "b" | c'
    assert [ours[name] for name in ("P@1", "P@1±", "labels/all", "threshold", "A1/P@1", "P@5")] == [
        *("33.333333", "", "12", "0.129", "10.000000", ""),
    ]
    assert theirs["P@5"] == "50.000000"
    assert [paper[name] for name in ("data", "experiment", "source", "train_documents", "P@5", "runs")] == [
        *("eurlex57k", "BERT-base", "Chalkidis et al. 2019", "45000", "68.7", ""),
    ]
    columns = table(shown(format="csv", columns="P@1"))[0]
    assert columns == ["data", "experiment", "source", "train_documents", "note", "runs", "P@1", "P@1±"]


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_whole_escapes_names_and_needs_nothing_from_elsewhere(make, tmp_path):
    make("<script>alert(1)</script>&", data='"x" <b>', place="one")
    compare([str(tmp_path)], out=str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text("utf8")
    page = Tags(text)
    assert page.open == []
    tags = [tag for tag, _ in page.seen]
    assert not {"script", "b", "link", "img"} & set(tags)
    assert "<script>alert(1)</script>&" in page.text
    assert '"x" <b> (in %)' in page.text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert tags.count("table") == 1


def test_the_tables_alone_for_another_page(make, tmp_path):
    make("a")
    make("b", data="aapd")
    page = Tags(html_tables(compare_runs(read_runs([tmp_path]))))
    assert [attrs["class"] for tag, attrs in page.seen if tag == "table"] == ["results", "results"]
    assert not {"html", "body", "style"} & {tag for tag, _ in page.seen}
    boxes = [attrs for tag, attrs in page.seen if tag == "div"]
    assert all("overflow-x: auto" in attrs["style"] for attrs in boxes)


def test_lines_of_the_terminal_are_not_folded_and_names_go_out_as_they_are(make, shown):
    name = "[bold]x[/] :car: " + "long " * 30
    for seed in range(2):
        make(
            name.strip(),
            seed,
            metrics=dict.fromkeys(("P@1", "P@3", "P@5", "nDCG@5", "PSP@1"), 0.123),
            place=f"runs/{seed}",
        )
    title, header, row = shown().splitlines()
    assert title == "reuters (in %)"
    assert row.startswith(name.strip())
    assert row.split("  ")[-1] == "12,345"
    assert row.count("12.30 ± 0.00") == 5
    assert header.split()[:2] == ["experiment", "runs"]


def test_the_format_wins_over_the_ending(make, tmp_path):
    make()
    compare([str(tmp_path)], format="markdown", out=str(tmp_path / "x.txt"))
    assert (tmp_path / "x.txt").read_text().startswith("### reuters")
    compare([str(tmp_path)], out=str(tmp_path / "x.md"))
    assert (tmp_path / "x.md").read_text() == (tmp_path / "x.txt").read_text()
    assert not list(tmp_path.glob(".x.*"))


def html_tables(comparison):
    return render("tables.html", sheets=comparison_sheets(comparison))


# --- Significance ----------------------------------------------------------------------------------------------------


def keep_predictions(folder, found, names=("a", "b", "c"), ids=None, truth=None):
    """Documents with one true label each, and one candidate each, by names."""
    numbers = {name: number for number, name in enumerate(names)}
    truth = truth or ["a", "b", "c", "a"] * 10
    table = {
        "row": list(range(len(truth))),
        "id": ids or [f"d{i}" for i in range(len(truth))],
        "truth": pa.array([[numbers[name]] for name in truth], pa.list_(pa.int32())),
        "labels": pa.array([[numbers[name]] for name in found], pa.list_(pa.int32())),
        "scores": pa.array([[0.9]] * len(found), pa.list_(pa.float32())),
    }
    size = len(names)
    labels = {
        "label": list(names),
        "text": [""] * size,
        "documents": [5] * size,
        "weight": [2.0] * size,
        "known": [True] * size,
    }
    pq.write_table(pa.table(table), folder / "predictions.parquet")
    pq.write_table(pa.table(labels), folder / "labels.parquet")


RIGHT = ["a", "b", "c", "a"] * 10
HALF = ["a", "b", "a", "b"] * 10  # the first two of four


def test_rows_are_held_against_the_first_or_the_one_that_is_named(make, shown):
    keep_predictions(make("half"), HALF)
    keep_predictions(make("right"), RIGHT, names=("c", "b", "a"))  # the same labels under other numbers
    rows = list(csv.DictReader(io.StringIO(shown(significance=True, samples=100, format="csv"))))
    (one,) = [row for row in rows if row["metric"] == "P@1"]
    assert (one["data"], one["reference"], one["row"]) == ("reuters", "half", "right")
    assert [float(one[name]) for name in ("reference_value", "value", "difference", "p")] == [50, 100, 50, 0.01]
    assert 0 < float(one["low"]) < 50 < float(one["high"]) < 100
    (other,) = csv.DictReader(io.StringIO(shown(against="right", samples=100, format="csv", columns="P@1")))
    assert (other["reference"], other["row"], other["difference"]) == ("right", "half", "-50.000000")
    assert other["low"] == f"-{one['high']}"


def test_significance_in_every_shape(make, shown):
    keep_predictions(make("half"), HALF)
    keep_predictions(make("right"), RIGHT)
    options = {"significance": True, "samples": 50, "columns": "P@1,seconds"}
    markdown = shown(format="markdown", **options)
    assert "### reuters: right against half (in %)" in markdown
    assert "| P@1 | 50.00 | 100.00 | **+50.00** |" in markdown
    assert "<strong>+50.00</strong>" in shown(format="html", **options)
    assert "+50.00" in shown(**options)
    keep_predictions(make("twin"), HALF)
    assert "| P@1 | 50.00 | 50.00 | +0.00 | +0.00 to +0.00 | 1.000 |" in shown(format="markdown", **options)


def test_a_group_of_few_documents_has_no_interval(make, shown):
    for name, found in (("half", HALF), ("right", RIGHT)):
        keep_predictions(folder := make(name, metrics={"macroF@5/oneshot": 0.5, "macroF@5/all": 0.5}), found)
        labels = pq.read_table(folder / "labels.parquet").to_pydict() | {"documents": [500, 500, 1]}
        pq.write_table(pa.table(labels), folder / "labels.parquet")  # ten documents carry c
    options = {"significance": True, "samples": 50, "columns": "macroF@5/oneshot,macroF@5/all"}
    assert "| macroF@5/oneshot | 0.00 | 100.00 | +100.00 | too few |  |" in shown(format="markdown", **options)
    whole, few = sorted(csv.DictReader(io.StringIO(shown(format="csv", **options))), key=lambda row: row["metric"])
    assert [few[name] for name in ("difference", "low", "high", "p")] == ["100.000000", "", "", ""]
    assert all(whole[name] for name in ("low", "high", "p"))


@pytest.mark.parametrize("name", ["predictions.parquet", "labels.parquet"])
@pytest.mark.parametrize("is_corrupt", [True, False])
def test_files_that_cannot_be_read_are_told_once_for_what_they_are(make, tmp_path, capsys, name, is_corrupt):
    keep_predictions(broken := make("first", 0), HALF)  # in the row of reference, which is looked at first
    keep_predictions(make("first", 1), HALF)
    keep_predictions(make("other"), HALF)
    if is_corrupt:
        (broken / name).write_bytes(b"PAR1 cut off")
    else:
        pq.write_table(pa.table({"label": ["a"], "id": ["d0"]}), broken / name)
    compare([str(tmp_path)], significance=True, samples=20, format="csv", columns="P@1")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("·")]
    assert f"{broken}: {name} cannot be read" in line
    assert is_corrupt or "it has no column " in line


def test_several_seeds_are_averaged(make, shown):
    keep_predictions(make("one"), HALF)
    keep_predictions(make("two", 0), HALF)
    keep_predictions(make("two", 1), RIGHT)
    (row,) = csv.DictReader(io.StringIO(shown(significance=True, samples=50, format="csv", columns="P@1")))
    assert (row["value"], row["difference"]) == ("75.000000", "25.000000")


def test_runs_on_other_documents_or_labels_are_named_and_left_out(make, tmp_path, capsys):
    keep_predictions(make("first"), HALF)
    keep_predictions(make("shuffled"), HALF[::-1], ids=[f"d{i}" for i in range(40)][::-1], truth=RIGHT[::-1])
    make("without")
    keep_predictions(make("others"), HALF, ids=[f"x{i}" for i in range(40)])
    keep_predictions(make("truth"), HALF, truth=["b", *RIGHT[1:]])
    keep_predictions(make("names"), HALF, names=("a", "b", "c", "d"), truth=["d", *RIGHT[1:]])
    compare([str(tmp_path)], significance=True, samples=20, format="csv", columns="P@1")
    output = capsys.readouterr()
    (row,) = csv.DictReader(io.StringIO(output.out))
    assert (row["row"], row["difference"], row["p"]) == ("shuffled", "0.000000", "1.000000")
    lines = [line for line in output.err.splitlines() if "left out" in line]
    for name, reason in {
        "without": "it has no predictions.parquet",
        "others": "its test documents differ",
        "truth": "the labels of its test documents differ",
        "names": "the labels of its test documents differ",
    }.items():
        assert [name for line in lines if f"/{name}/" in line and reason in line] == [name]
    assert len(lines) == 4


def test_significance_needs_two_rows_with_predictions(make, shown, monkeypatch):
    keep_predictions(make("a"), HALF)
    with monkeypatch.context() as patch:
        patch.setattr("zoo.analysis.pairs.pairs_of", None)  # refused before anything is read
        with pytest.raises(UserError, match="`significance` needs two rows"):
            shown(significance=True)
    make("b")
    with pytest.raises(UserError, match="`significance` needs two rows"):
        shown(significance=True)
    keep_predictions(make("c"), HALF)
    with pytest.raises(UserError, match="`columns`"):
        shown(significance=True, columns="seconds", samples=5)
