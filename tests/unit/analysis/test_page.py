"""The report page: what it shows, leaves out and escapes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.errors import raises
from zoo.analysis.build_page import make_page, slug, unique_slugs, unique_titles
from zoo.analysis.evidence import Evidence, Example
from zoo.analysis.examples import ExampleCard
from zoo.analysis.page import Page, RunSection, duration
from zoo.analysis.pairs import read_tested
from zoo.analysis.tail import tail_pair, tail_table
from zoo.analysis.templating import render
from zoo.commands.report import report, write_page
from zoo.core.errors import UserError
from zoo.core.run_folder import RunFolder

NASTY = '<script>alert("x")</script> & $x$'
EXAMPLE = Example(
    id=NASTY,
    kind="missed",
    words=[" oil", " pri", "ces", " <rose>"],
    truth=[0, 2, 3],
    found=[0, 1],
    scores=[0.9, 0.1],
    attention={0: [0.4, 0.2, 0.01, 0.0], 1: [0.0, 0.1, 0.0, 0.3], 2: [0.25, 0.25, 0.25, 0.25]},
)
RUN = RunFolder(Path("nowhere"), {}, {"threshold": 0.3})
RUN.labels = pa.table(  # as if read from its file
    {
        "label": ["oil", NASTY, "3560", "new"],
        "text": ["Oil", "", "a <text>", ""],
        "documents": [30, 20, 3, 0],
    }
)


class Elements(HTMLParser):
    """Every element with its attributes and its own text; complains where they do not match."""

    ALONE = frozenset({"meta", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])
        if tag not in self.ALONE:
            self.open.append(self.found[-1])

    def handle_startendtag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.open[-1][2] += data

    def of(self, tag, kind=None):
        """Attributes and texts of the elements of a kind."""
        mine = [(attrs, text) for one, attrs, text in self.found if one == tag]
        return [(attrs, text) for attrs, text in mine if kind is None or kind in attrs.get("class", "").split()]


def make_run(folder, seed=0, **facts):
    """A run of three labels and four documents."""
    folder.mkdir(parents=True)
    found = [[0, 1], [1, 0], [2, 0], [0, 2]] if seed == 0 else [[0], [0], [0], [0]]
    table = {
        "row": range(4),
        "id": list("abcd"),
        "truth": [[0], [1], [1, 2], []],
        "labels": found,
        "scores": [[0.5] * len(row) for row in found],
    }
    pq.write_table(pa.table(table), folder / "predictions.parquet")
    labels = {"label": ["oil", NASTY, "tin"], "text": [""] * 3, "documents": [200, 20, 1], "weight": [1.0] * 3}
    pq.write_table(pa.table(labels), folder / "labels.parquet")
    metrics = {"P@1": 0.5, "macroP@5/bin01": 0.4, "labels/bin01": 2.0, "macroP@5/bin02": 0.2, "labels/bin02": 1.0}
    (folder / "metrics.json").write_text(json.dumps({"metrics": metrics}))
    known = {"experiment": "first", "data": "reuters", "sample": False, "seed": seed, "parameters": 1234567}
    return RunFolder(folder, known | {"epochs": 0} | facts, metrics)


def section(run=RUN, evidence=None):
    return RunSection(run, "a run", evidence, [])


def examples_html(run, evidence, anchor):
    return render("examples.html", part=section(run, evidence), anchor=anchor)


def card(example, run, anchor):
    return examples_html(run, Evidence(examples=(example,)), anchor)


def facts_html(run):
    return render("facts.html", part=section(run))


def metrics_html(metrics):
    return render("metrics.html", part=section(RunFolder(Path("nowhere"), {}, metrics)))


def test_candidates_come_first_and_missed_labels_after():
    tags = ExampleCard(EXAMPLE, RUN, 0).tags
    assert [(tag.kind, tag.score) for tag in tags] == [
        ("right", "0.90"),
        ("wrong", "0.10"),
        ("missed", ""),
        ("missed", "not in training"),
    ]


def test_words_are_shaded_by_their_share_of_the_strongest_weight():
    page = Elements(card(EXAMPLE, RUN, "run1"))
    words = [(attrs["style"], text) for attrs, text in page.of("i")]
    assert words == [
        ("--a0:1;--a2:1", "oil"),
        ("--a0:0.5;--a1:0.33;--a2:1", "pri"),
        ("--a2:1", "ces"),
        ("--a1:1;--a2:1", "<rose>"),
    ]
    assert "</i><i" in card(EXAMPLE, RUN, "x")  # a piece that goes on with a word has no space before it


def test_one_label_is_chosen_and_all_that_looked_can_be():
    page = Elements(card(EXAMPLE, RUN, "run1"))
    buttons = [attrs for attrs, _ in page.of("input")]
    assert [attrs["value"] for attrs in buttons] == ["0", "1", "2"]
    assert [("checked" in attrs) for attrs in buttons] == [True, False, False]
    assert {attrs["name"] for attrs in buttons} == {"run1-0"}
    assert len(page.of("label", "tag")) == 3
    assert len(page.of("div", "tag")) == 1  # training never saw it: there is nothing to look with
    assert [text for attrs, text in page.of("span", "score")] == ["0.90", "0.10", "", "not in training"]
    assert len(page.of("label", "unlikely")) == 1
    page = Page("a page", "now", [], [], [section(RUN, Evidence(examples=(EXAMPLE,)))]).html()
    assert 'input[value="2"]:checked) i { --w: var(--a2, 0); }' in page
    assert 'input[value="3"]:checked' not in page


def test_examples_without_attention_have_no_buttons():
    plain = Example("d", "right", [" a", " b"], [0], [0], [0.9])
    text = examples_html(RUN, Evidence(examples=(plain,)), "run1")
    assert "<input" not in text
    assert "<i " not in text
    assert "Choose" not in text
    assert examples_html(RUN, None, "run1") == ""


def test_texts_of_labels_stand_beside_names_that_do_not_say_as_much():
    text = card(EXAMPLE, RUN, "x")
    assert "3560 <small>a &lt;text&gt;</small>" in text
    assert "Oil" not in text
    assert NASTY not in text


def test_f1_of_labels_is_that_of_the_metrics(tmp_path):
    tested = read_tested(make_run(tmp_path / "run"))
    assert tested.measurement.label_f1().tolist() == pytest.approx([2 / 4, 2 / 4, 2 / 2])  # of labelled documents
    other = read_tested(make_run(tmp_path / "other", seed=1))
    other.labels[:] = ["tin", "zinc", "oil"]  # label indices differ between runs
    pair = tail_pair(tested, other)
    assert pair.names == []  # oil is frequent, tin in the other run
    pair = tail_pair(tested, read_tested(make_run(tmp_path / "third", seed=1)))
    assert pair.names == [NASTY, "tin"]
    assert pair.documents.tolist() == [20, 1]
    assert (pair.one.tolist(), pair.other.tolist()) == ([0.5, 1.0], [0.0, 0.0])
    (tmp_path / "third" / "labels.parquet").unlink()
    assert read_tested(RunFolder(tmp_path / "third", {}, {})) is None


def test_tail_labels_of_several_runs_are_compared_at_a_fixed_threshold(tmp_path):
    low = make_run(tmp_path / "low").path / "predictions.parquet"
    table = pq.read_table(low)
    unsure = pa.array([[0.5, 0.4]] * 4)  # only the first candidate of a document counts
    pq.write_table(table.set_column(table.column_names.index("scores"), "scores", unsure), low)
    runs = [make_run(tmp_path / "run"), RunFolder(low.parent, {}, {}), make_run(tmp_path / "other", seed=1)]
    tested = [read_tested(run) for run in runs]
    found = tail_table(tested, 2)
    assert found.names == [NASTY, "tin"]
    assert found.documents.tolist() == [20, 1]
    assert found.values.flatten().tolist() == pytest.approx([2 / 4, 1, 2 / 3, 1, 0, 0])
    assert tail_table(tested, 3).names == ["oil", NASTY, "tin"]
    for size in (0, 4):
        with raises(UserError, f"`tail_labels={size}`", 3):
            tail_table(tested, size)
    tested[1].ids[0] = "z"
    with raises(UserError, "different documents"):
        tail_table(tested, 2)


def test_a_page_of_one_run(tmp_path):
    page = make_page([make_run(tmp_path / "run", sample=True)])
    text = page.html()
    elements = Elements(text)
    assert "built-in sample" in elements.of("p", "faint")[0][1]
    assert elements.of("p", "sample")
    assert {picture.name for picture in page.pictures} == {"label_distribution", "bins", "reliability"}
    assert len(elements.of("figure")) == len(elements.of("figcaption")) == 3
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs, _ in elements.of("svg"))
    assert elements.of("html")[0][0]["lang"] == "en"
    assert "Examples" not in text
    assert not re.search(r'(src|href)="(?!#|data:)', text.replace("xlink:", ""))


def test_runs_on_the_same_data_are_compared(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1), make_run(tmp_path / "c", data="rcv1")]
    page = make_page(runs)
    names = {picture.name for picture in page.pictures}
    assert {"reuters-bins", "reuters-tail_f1-first-b", "rcv1-label_distribution", "first-c-bins"} <= names
    assert len(names) == len(page.pictures)
    elements = Elements(page.html())
    assert [attrs["href"] for attrs, _ in elements.of("a")] == ["#run1", "#run2", "#run3"]
    ids = [attrs["id"] for _, attrs, _ in elements.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not elements.of("p", "sample")


def test_no_picture_overwrites_another(tmp_path):
    facts = [("a.1", "x"), ("a-1", "x"), ("A-1-2", "X"), ("x", "X.")]
    runs = [make_run(tmp_path / str(i), experiment=name, data=data) for i, (name, data) in enumerate(facts)]
    page = make_page(runs)
    names = [picture.name.lower() for picture in page.pictures]
    assert len(names) == len(set(names))
    assert {"x-tail_f1-a-1-2", "x-2-label_distribution", "x-3-label_distribution", "x-4-bins"} <= set(names)
    ids = [attrs["id"] for _, attrs, _ in Elements(page.html()).found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert unique_slugs(["a.1", "a-1", "A-1-2", "a 1"]) == ["a-1", "a-1-2", "a-1-2-2", "a-1-3"]


def test_rare_labels_are_compared_on_the_same_documents_alone(tmp_path):
    runs = [make_run(tmp_path / name, experiment=name) for name in "abc"]
    file = runs[1].path / "predictions.parquet"
    pq.write_table(pa.table(pq.read_table(file).to_pydict() | {"id": list("abcx")}), file)
    assert [picture.name for picture in make_page(runs).pictures if picture.kind == "tail_f1"] == ["tail_f1-c"]


@pytest.mark.parametrize("name", ["predictions.parquet", "labels.parquet"])
def test_a_file_without_a_column_is_one_note(tmp_path, capsys, name):
    runs = [make_run(tmp_path / name, experiment=name) for name in "ab"]
    pq.write_table(pa.table({"id": ["a"]}), runs[1].path / name)
    assert "tail_f1-b" not in {picture.name for picture in make_page(runs).pictures}
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name} cannot be read" in line


def test_titles_tell_runs_apart(tmp_path):
    def titles(*facts):
        return unique_titles([RunFolder(tmp_path / str(i), one, {"P@1": 1.0}) for i, one in enumerate(facts)])

    assert titles({"experiment": "a"}, {"experiment": "b"}) == ["a", "b"]
    assert titles({"experiment": "a", "seed": 0}, {"experiment": "a", "seed": 1}) == ["a, seed 0", "a, seed 1"]
    assert titles({"experiment": "a", "seed": 0}, {"experiment": "a", "seed": 0}) == ["a/0", "a/1"]
    assert slug("a/0, seed <1>") == "a-0-seed-1"
    assert slug("//") == "run"


def test_what_is_nasty_is_escaped_everywhere(tmp_path):
    run = make_run(tmp_path / "run", experiment=NASTY, data=NASTY, head=NASTY)
    Evidence(examples=(Example(**vars(EXAMPLE) | {"truth": [0, 2]}),)).save(run)
    text = make_page([run]).html()
    assert "<script" not in text
    assert not [tag for tag, *_ in Elements(text).found if tag == "script"]


def test_facts_and_metrics_leave_out_what_is_not_there(tmp_path):
    facts = facts_html(make_run(tmp_path / "run"))
    assert "1,234,567" in facts
    assert not re.search("epochs|memory|stages", facts)
    odd = make_run(tmp_path / "odd")
    (odd.path / "config.yaml").write_text("stages: 5")
    assert "stages" not in facts_html(odd)
    assert [duration(seconds) for seconds in (None, 5.04, 61, 7300)] == [None, "5.0 s", "1 min 1 s", "2 h 1 min"]
    cells = Elements(
        metrics_html({"P@1": 0.5, "labels/all": 7.0, "macroF@5/all": 0.25, "A1/P@1": 0.1, "threshold": 0.3})
    )
    assert {"50.00", "7", "25.00", "10.00", "0.300"} <= {text for _, text in cells.of("td")}


def test_other_files_are_kept(tmp_path):
    folder = tmp_path / "deep" / "report"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "index.html").write_text("old")
    write_page(make_page([make_run(tmp_path / "run")]), folder)
    pictures = {"bins.svg", "label_distribution.svg", "reliability.svg"}
    assert {file.name for file in folder.iterdir()} == {"notes.txt", "index.html", *pictures}
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "index.html").read_text().startswith("<!DOCTYPE html>")


def test_invalid_folders_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with raises(UserError, f"`out={tmp_path / 'file'}`"):
        write_page(make_page([make_run(tmp_path / "run")]), tmp_path / "file")
    for folder in ("none", "empty"):
        with raises(UserError, tmp_path / folder):
            report([str(tmp_path / folder)], out=str(tmp_path / "out"))
        (tmp_path / "empty").mkdir(exist_ok=True)
    assert not (tmp_path / "out").exists()


def test_broken_evidence_is_one_note(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    (run.path / "evidence.npz").write_bytes(b"broken")
    assert "bins" in {picture.name for picture in make_page([run]).pictures}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "evidence.npz cannot be read" in lines[0]
