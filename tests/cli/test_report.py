"""`zoo report` on real runs, with its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import TINY
from tests.cli.test_experiments import short
from tests.cli.test_lsfa import SMALL
from zoo.commands.main import main

LSFA = Path("experiments/lsfa_reuters.yaml").resolve()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--enable-logging=stderr",
]
# Runs before the page, and records its errors, what it fetches and its layout.
WATCH = """<script>
const wrong = [];
for (const kind of ["error", "warn"]) console[kind] = (...parts) => wrong.push(kind + ": " + parts.join(" "));
addEventListener("error", event => wrong.push(event.message || "failed: " + event.target.outerHTML), true);
addEventListener("unhandledrejection", event => wrong.push("rejected: " + event.reason));
addEventListener("load", () => requestAnimationFrame(() => {
  const last = [...document.querySelectorAll(".example")].find(one => one.querySelectorAll("input").length > 1);
  const shade = () => last ? [...last.querySelectorAll("i")].map(i => getComputedStyle(i).backgroundColor).join() : "";
  const before = shade();
  if (last) last.querySelectorAll("input")[1].click();
  const found = {
    wrong,
    fetched: [...document.querySelectorAll("*")].filter(one => one.tagName != "A")
      .flatMap(one => ["src", "href", "xlink:href", "srcset", "data"].map(name => one.getAttribute(name)))
      .filter(place => place && !/^(#|data:)/.test(place)),
    wide: document.documentElement.scrollWidth,
    inner: innerWidth,
    pictures: [...document.querySelectorAll("figure svg")].map(svg => Math.round(svg.getBoundingClientRect().width)),
    columns: new Set([...document.querySelectorAll("figure")].map(f => Math.round(f.getBoundingClientRect().x))).size,
    shaded: before, switched: shade() !== before,
  };
  parent.postMessage(JSON.stringify(found), "*");
}));
</script>"""
# A frame can be as narrow as a phone, unlike a window.
FRAME = """<!DOCTYPE html><body style="margin: 0">
<script>addEventListener("message", event => document.body.dataset.found = event.data)</script>
<iframe src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe>
</body>"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder with a run of LSFA and of a linear head on the built-in sample; read-only."""
    folder = tmp_path_factory.mktemp("report")
    config = folder / "linear.yaml"
    config.write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        common = ["--runs", str(folder / "runs"), "--wandb.mode=disabled"]
        main(["fit", "--config", str(LSFA), *common, *short(LSFA), *SMALL])
        same = ["--data.num_documents=120", "--data.words_per_document=30"]  # as `short` has them
        main(["fit", "--config", str(config), *common, *same])
    return folder / "runs"


def report(*args):
    main(["report", "--partial", *map(str, args)])  # the run of LSFA trained on two batches only


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report"
    report(runs, "--out", out)
    return out


def test_the_page_has_both_runs(page):
    text = (page / "index.html").read_text("utf8")
    assert text.count('<section id="run') == 2
    assert "built-in sample" in text
    of_data = {"label_distribution", "label_correlation", "bins", "tail_f1-lsfa_reuters"}
    of_lsfa = {f"lsfa_reuters-{kind}" for kind in ("curves", "norms", "tsne")}
    assert of_data | of_lsfa <= {file.stem for file in page.glob("*.svg")}
    assert '<input type="radio"' in text  # LSFA's attention
    assert len(text) < 2_000_000
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)  # names of formats, which nobody fetches
    assert not re.search(r"url\((?!#)|@import", text)


def test_a_report_of_one_run_has_short_names(runs, tmp_path):
    (folder,) = runs.glob("linear/*")
    report(folder, "--out", tmp_path / "one")
    assert {"bins.svg", "curves.svg", "norms.svg", "index.html"} <= {file.name for file in (tmp_path / "one").iterdir()}


def test_unreadable_files_are_notes(runs, tmp_path, capsys):
    (folder,) = runs.glob("linear/*")
    copy = shutil.copytree(folder, tmp_path / "odd" / folder.name, ignore=shutil.ignore_patterns("checkpoints"))
    (copy / "config.yaml").write_text("stages: 5")
    pq.write_table(pa.table({"id": ["a"]}), copy / "predictions.parquet")
    report(folder, copy, "--out", tmp_path / "out")
    assert capsys.readouterr().err.count("predictions.parquet") == 1


def test_a_run_without_evidence_has_fewer_pictures(runs, tmp_path):
    (folder,) = runs.glob("lsfa_reuters/*")
    copy = shutil.copytree(folder, tmp_path / "less" / folder.name)
    (copy / "evidence.npz").unlink()
    report(copy, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "curves.svg").is_file()
    assert not (tmp_path / "out" / "tsne.svg").exists()


def test_broken_runs_are_skipped_unless_no_run_is_left(runs, tmp_path, fails):
    (folder,) = runs.glob("linear/*")
    broken = shutil.copytree(folder, tmp_path / "runs" / "broken")
    (broken / "metrics.json").write_text("{")
    fails("report", str(tmp_path / "runs"), f"--out={tmp_path / 'out'}", names=[tmp_path / "runs"])
    report(tmp_path / "runs", folder, "--out", tmp_path / "out")


def look(page, folder, width):
    """What a browser reports about the page in a frame of that width, and its console messages."""
    watched, frame = folder / f"watched{width}.html", folder / f"frame{width}.html"
    watched.write_text((page / "index.html").read_text("utf8").replace("<head>", f"<head>{WATCH}", 1), "utf8")
    frame.write_text(FRAME.format(page=watched.name, width=width))
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 500)},900"]
    for _ in range(3):  # on a busy machine the browser may stop before the page has answered
        done = subprocess.run(
            [*command, "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if found := re.search(r'data-found="([^"]*)"', done.stdout):
            break
    assert found, done.stderr
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1].replace("&quot;", '"')), said


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")
@pytest.mark.parametrize(("width", "columns"), [(400, 1), (1280, 2)])
def test_a_browser_shows_the_page_without_errors(page, tmp_path, width, columns):
    found, said = look(page, tmp_path, width)
    assert said == []
    assert found["wrong"] == []
    assert found["fetched"] == []
    assert found["inner"] == width
    assert found["wide"] <= width
    assert found["columns"] == columns
    assert found["pictures"]
    assert all(0.4 * width / columns < picture <= width for picture in found["pictures"])
    assert "rgba(230, 159, 0, 0.8)" in found["shaded"]  # without a click, the first label's strongest word
    assert found["switched"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")
def test_the_browser_check_detects_errors(page, tmp_path):
    wrong = '<img src="gone.png"><script>console.error("oh"); undefinedName</script><div style="width: 3000px">x</div>'
    broken = tmp_path / "broken"
    shutil.copytree(page, broken)
    text = (broken / "index.html").read_text("utf8")
    (broken / "index.html").write_text(text.replace("</body>", f"{wrong}</body>"), "utf8")
    found, _ = look(broken, tmp_path, 400)
    assert len(found["wrong"]) == 3
    assert found["fetched"] == ["gone.png"]
    assert found["wide"] > 400
