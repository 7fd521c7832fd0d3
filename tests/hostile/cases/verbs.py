"""Commands on broken files: compare, report, sweep, rerank, tree, add-labels, and those of data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.case import (
    CANARY,
    EITHER,
    ERROR,
    TINY,
    WORKS,
    Bad,
    Box,
    Case,
    Result,
    Story,
    lost_unless,
    silent_unless,
)
from tests.hostile.cases.checkpoints import Command
from tests.hostile.cases.corpora import GOOD, XMC

SCRIPT = "<script>alert(1)</script>"
FACTS = {"experiment": "joint", "data": "reuters", "seed": 0, "head": "Linear", "limit_train": None}
Change = Callable[[Path], object]


def run_with(**facts: Any) -> str:
    return json.dumps(FACTS | {"metrics": {"P@1": 0.5}} | facts)


def write(name: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda run: (run / name).write_bytes(data)


def flip(name: str, place: float) -> Change:
    def change(run: Path) -> None:
        content = bytearray((run / name).read_bytes())
        start = int(len(content) * place)
        content[start : start + 30] = bytes(byte ^ 0x5A for byte in content[start : start + 30])
        (run / name).write_bytes(content)

    return change


def column(name: str, key: str, values: Callable[[pa.Table], Any]) -> Change:
    """Replace a column of a table."""

    def change(run: Path) -> None:
        table = pq.read_table(run / name)
        pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(values(table))), run / name)

    return change


def evidence(**arrays: np.ndarray) -> Change:
    def change(run: Path) -> None:
        with np.load(run / "evidence.npz") as stored:
            known = dict(stored)
        np.savez(run / "evidence.npz", **known | {name: arrays.get(name, value) for name, value in known.items()})

    return change


def pickled_evidence(run: Path) -> None:
    np.savez(run / "evidence.npz", attention=np.array([Command()], dtype=object))


def shortened(run: Path) -> None:
    with np.load(run / "evidence.npz") as stored:
        np.savez(run / "evidence.npz", **{name: stored[name][:1] for name in stored.files if stored[name].ndim})


# What happens to a finished run before it is compared and reported.
RUNS: dict[str, Change] = {
    "untouched": lambda run: None,
    "metrics-missing": lambda run: (run / "metrics.json").unlink(),
    "metrics-broken": write("metrics.json", "{"),
    "metrics-a-list": write("metrics.json", "[]"),
    "metrics-deep": write("metrics.json", "[" * 100_000),
    "metrics-nan": write("metrics.json", run_with(metrics={"P@1": float("nan")})),
    "metrics-huge": write("metrics.json", run_with(metrics={"P@1": 1e308, "P@5": -1e308})),
    "metrics-huge-integer": write("metrics.json", '{"metrics": {"P@1": ' + "9" * 400 + "}}"),
    "metrics-many-digits": write("metrics.json", '{"metrics": {"P@1": ' + "9" * 5000 + "}}"),
    "metrics-of-other-kinds": write("metrics.json", run_with(seed=[1], head={"a": 1}, data=3, experiment=None)),
    "metrics-html": write("metrics.json", run_with(experiment=SCRIPT, data=SCRIPT, head=SCRIPT)),
    "metrics-markup": write("metrics.json", run_with(experiment="[red]x[/] [/]", data="[link=x]", head=":smile:")),
    "metrics-controls": write("metrics.json", run_with(experiment="\x1b[2Ja\nb\x07|", data="\u202e|")),
    "metrics-surrogate": write("metrics.json", '{"experiment": "\\ud800", "metrics": {"P@1": 0.5}}'),
    "config-broken": write("config.yaml", "model: {"),
    "config-tag": write("config.yaml", f"model: !!python/object/apply:os.system ['touch {CANARY}']"),
    "config-of-other-kinds": write("config.yaml", "model: 3\nstages: {a: 1}\ndata: [x]\n"),
    "log-binary": write("metrics.csv", bytes(range(256))),
    "log-without-numbers": write("metrics.csv", "stage,step,val/nDCG@5\nx,y,z\n"),
    "log-huge-field": write("metrics.csv", "stage,step,val/nDCG@5\n" + "9" * 300_000 + ",1,1\n"),
    "log-with-nul": write("metrics.csv", "stage,step\n\0,1\n"),
    "predictions-text": write("predictions.parquet", "hello"),
    "predictions-flipped": flip("predictions.parquet", 0.3),
    "predictions-labels-out-of-range": column(
        "predictions.parquet", "labels", lambda table: [[10**6] * len(row) for row in table["labels"].to_pylist()]
    ),
    "predictions-labels-negative": column(
        "predictions.parquet", "labels", lambda table: [[-5] * len(row) for row in table["labels"].to_pylist()]
    ),
    "predictions-scores-nan": column(
        "predictions.parquet", "scores", lambda table: [[float("nan")] * len(r) for r in table["scores"].to_pylist()]
    ),
    "predictions-scores-short": column("predictions.parquet", "scores", lambda table: [[0.5]] * len(table)),
    "labels-html": column("labels.parquet", "label", lambda table: [f"{SCRIPT}{i}" for i in range(len(table))]),
    "labels-controls": column("labels.parquet", "label", lambda table: [f"\x1b[2J{i}\0" for i in range(len(table))]),
    "labels-fewer": lambda run: pq.write_table(pq.read_table(run / "labels.parquet")[:2], run / "labels.parquet"),
    "labels-missing": lambda run: (run / "labels.parquet").unlink(),
    "evidence-pickled": pickled_evidence,
    "evidence-flipped": flip("evidence.npz", 0.5),
    "evidence-short": shortened,
}  # fmt: skip


IN_REPORTS = ("untouched", "metrics-html", "labels-html", "labels-fewer", "log-binary", "log-without-numbers",
              "predictions-labels-out-of-range", "predictions-scores-nan", "evidence-pickled", "evidence-flipped",
              "evidence-short")  # fmt: skip


def on_run(change: Change) -> Callable[[Box], None]:
    def setup(box: Box) -> None:
        change(box.run_folder("linear"))

    return setup


def page_is_safe(box: Box, result: Result) -> None:
    """No markup of a label or a name reaches the page, and the page is whole."""
    if result.code != 0:
        return
    page = box.folder / "report" / "index.html"
    lost_unless(page.is_file(), "there is no page")
    for file in [page, *page.parent.glob("*.svg")]:
        if SCRIPT in (text := file.read_text("utf8")):
            raise Bad("security", f"{file.name} contains a script from the data")
        silent_unless("</html>" in text or file.suffix == ".svg", "the page is not complete")


def no_controls(box: Box, result: Result) -> None:
    if "\x1b[2J" in result.out:
        raise Bad("security", "a control sequence from the data reaches the terminal")


OWN_DATA = {"env": {"ZOO_DATA": "own"}}
SWEEP = "config: tiny.yaml\ngrid:\n  model.optimizer.lr: [0.1]\n"
SWEEPS: dict[str, str | bytes] = {
    "broken": "grid: {",
    "unknown-key": SWEEP + "grids: {}\n",
    "grid-empty": "config: tiny.yaml\ngrid: {model.optimizer.lr: []}\n",
    "axis-reserved": "config: tiny.yaml\ngrid: {name: [a, b]}\n",
    "search-reversed": "config: tiny.yaml\nsearch: {model.optimizer.lr: 1..0.1}\n",
    "trials-negative": SWEEP + "trials: -1\n",
    "jobs-0": SWEEP + "jobs: 0\n",
    "seeds-0": SWEEP + "seeds: 0\n",
    "timeout-odd": SWEEP + "timeout: -3h\n",
    "tag": f"grid: !!python/object/apply:os.system ['touch {CANARY}']\n",
    "binary": bytes(range(256)),
}
FEW = '{"text": "a new text", "labels": ["new"]}\n'
LABELS: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "works": ("few.jsonl", FEW, WORKS),
    "known": ("few.jsonl", '{"text": "a", "labels": ["fishery quota in the Baltic"]}\n', EITHER),
    "without-labels": ("few.jsonl", '{"text": "a", "labels": []}\n', ERROR),
    "without-text": ("few.jsonl", '{"text": " ", "labels": ["new"]}\n', ERROR),
    "broken": ("few.jsonl", FEW + "{", ERROR),
    "label-surrogate": ("few.jsonl", '{"text": "a", "labels": ["\\ud800"]}\n', ERROR),
    "label-huge": ("few.jsonl", json.dumps({"text": "a", "labels": ["x" * 10**6]}) + "\n", EITHER),
    "unknown-words": ("few.jsonl", '{"text": "qqqq", "labels": ["new"]}\n', EITHER),
    "many": ("few.jsonl", json.dumps({"text": "a", "labels": [f"x{i}" for i in range(20_000)]}) + "\n", EITHER),
}
CONVERSIONS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "works": (["in.jsonl", "out.txt"], WORKS),
    "onto-itself": (["in.jsonl", "in.jsonl"], ERROR),
    "onto-itself-overwriting": (["in.jsonl", "in.jsonl", "--overwrite"], EITHER),
    "onto-existing": (["in.jsonl", "tiny.yaml"], ERROR),
    "to-unknown": (["in.jsonl", "out.doc"], ERROR),
    "to-features": (["in.jsonl", "out.xmc", "--features"], ERROR),
    "with-comma-labels": (["commas.jsonl", "out.txt"], ERROR),
    "with-newline-labels": (["newlines.jsonl", "out.xmc"], EITHER),
    "empty-separator": (["in.jsonl", "out.txt", "--target_label_sep="], ERROR),
    "folder-without-format": ([".", "out"], ERROR),
    "format-climbs": ([".", "out", "--format=/../../x.jsonl"], ERROR),
    "sparse-to-text": (["a.xmc", "out.jsonl"], WORKS),
}
RERANKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "candidates-0": ("--candidates=0", ERROR),
    "candidates-huge": ("--candidates=999999999", EITHER),
    "exponent-nan": ("--exponent=nan", ERROR),
    "exponent-inf": ("--exponent=inf", ERROR),
    "exponent-negative": ("--exponent=-1", EITHER),
    "exponent-huge": ("--exponent=1e30", EITHER),
    "allowed-loss-nan": ("--allowed_loss=nan", ERROR),
    "gain-unknown": ("--gain=F1", ERROR),
    "seed-negative": ("--form=ranknet", EITHER),
}
TREES: dict[str, tuple[str, tuple[str, ...]]] = {
    "works": ("--clusters=2", WORKS),
    "json": ("--json", WORKS),
    "tree-99": ("--tree=99", ERROR),
    "clusters-negative": ("--clusters=-1", ERROR),
}


def interrupted_overwrite(box: Box) -> str:
    """A conversion onto its own source that fails in the middle leaves the source."""
    box.write({"in.jsonl": GOOD + "{\n"})
    found = box.judge(box.zoo("data", "convert", "in.jsonl", "in.jsonl", "--overwrite"), ERROR)
    lost_unless((box.folder / "in.jsonl").read_text() == GOOD + "{\n", "the source was changed by a failed conversion")
    return found


def round_trip(kind: str) -> Story:
    """Convert there and back: nothing is lost without a word."""

    def tell(box: Box) -> str:
        rows = [
            {"id": f"d{i}", "text": text, "labels": ["\u00fc & <b>", "x y", str(i)]}
            for i, text in enumerate(
                ['say "a, b"', "tab\tand\nnewline", "\u2028 \x85 \x0b", "a\0b", "=1+1", "😀 \ufeff"]
            )
        ]
        box.write({"in.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
        first = box.zoo("data", "convert", "in.jsonl", f"middle{kind}")
        box.judge(first, WORKS)
        lost_unless("U+FFFD in 1 document" in first.err, "a NUL byte is replaced without a word")
        rows[3]["text"] = "a\ufffdb"
        found = box.judge(box.zoo("data", "convert", f"middle{kind}", "out.jsonl"), WORKS)
        lost_unless(box.lines("out.jsonl") == rows, "documents have changed")
        return found

    return Story(tell)


def report_over_files(box: Box) -> str:
    """A report into a folder with other files keeps them."""
    box.run_folder("linear")
    box.write({"report/mine.txt": "mine", "report/sub/other.svg": "mine"})
    found = box.judge(box.zoo("report", "runs", "--out=report", timeout=120), WORKS)
    for name in ("mine.txt", "sub/other.svg"):
        lost_unless((box.folder / "report" / name).read_text() == "mine", f"{name} was changed")
    return found


def cyclic_links(box: Box) -> str:
    box.run_folder("linear")
    (box.folder / "runs" / "again").symlink_to(box.folder / "runs")
    return box.judge(box.zoo("compare", "runs"), WORKS)


def unreadable(box: Box) -> str:
    run = box.run_folder("linear")
    os.mkfifo(run / "labels.json")
    (run / "predictions.parquet").unlink()
    os.mkfifo(run / "predictions.parquet")
    return box.judge(box.zoo("compare", "runs", timeout=30), EITHER)


def cases(seed: int) -> list[Case]:
    found = []
    for id, change in RUNS.items():
        expect = WORKS if id == "untouched" else EITHER
        found.append(Case(f"compare-{id}", ["compare", "runs", "--columns=all"], expect, setup=on_run(change),
                          check=no_controls, needs=("linear",)))  # fmt: skip
        if id in IN_REPORTS:
            found.append(Case(f"report-{id}", ["report", "runs"], expect, setup=on_run(change), check=page_is_safe,
                              options={"timeout": 120}, needs=("linear",)))  # fmt: skip
    pair = {"runs/a/metrics.json": run_with(), "runs/b/metrics.json": run_with(seed=1)}
    for id, option, expect in (
        ("by-unknown", "--by=nothing", ERROR),
        ("by-empty", "--by=", ERROR),
        ("columns-unknown", "--columns=P@11", ERROR),
        ("columns-empty", "--columns=,", ERROR),
        ("format-unknown", "--format=pdf", ERROR),
        ("out-unknown", "--out=table.doc", ERROR),
        ("out-folder", "--out=runs", ERROR),
        ("samples-0", "--samples=0", ERROR),
        ("samples-huge", "--samples=99999999999", EITHER),
        ("seed-negative", "--seed=-1", ERROR),
        ("against-unknown", "--against=nobody", ERROR),
        ("significance", "--significance", EITHER),
        ("file-as-run", "tiny.yaml", ERROR),
        ("missing-run", "nowhere", ERROR),
    ):
        found.append(Case(f"compare-{id}", ["compare", "runs", option], expect, pair))
    for name, text in SWEEPS.items():
        argv = ["sweep", "--sweep=s.yaml", "--out=out"]
        found.append(Case(f"sweep-{name}", argv, ERROR, {"s.yaml": text}))
    found += [
        Case("sweep-out-is-a-file", ["sweep", "--config=tiny.yaml", "--grid", "a=1", "--out=tiny.yaml"], ERROR),
        Case("sweep-missing", ["sweep", "--sweep=no.yaml"], ERROR),
        Case("sweep-without-axes", ["sweep", "--config=tiny.yaml"], ERROR),
        Case("sweep-known-folder-broken", ["sweep", "--sweep=s.yaml", "--out=out"], ERROR,
             {"s.yaml": SWEEP, "out/sweep.yaml": "[1]"}),
        Case("sweep-storage-broken", ["sweep", "--sweep=s.yaml", "--out=out", "--storage=tiny.yaml"], ERROR,
             {"s.yaml": SWEEP}, options={"timeout": 300}),
        Case("sweep-key-unknown", ["sweep", "--config=tiny.yaml", "--grid", "model.head.nothing=1", "--out=out"], ERROR,
             options={"timeout": 300}),
    ]  # fmt: skip
    for id, (name, content, expect) in LABELS.items():
        argv = ["add-labels", "--ckpt=httn.ckpt", f"--input={name}", "--out=new.ckpt"]
        found.append(Case(f"add-labels-{id}", argv, expect, {name: content}))
    found.append(Case("add-labels-to-linear", ["add-labels", "--ckpt=linear.ckpt", "--input=f.jsonl", "--out=n.ckpt"],
                      EITHER, {"f.jsonl": FEW}))  # fmt: skip
    own = {"in.jsonl": GOOD, "a.xmc": XMC, "commas.jsonl": '{"text": "a", "labels": ["a,b"]}\n'}
    own["newlines.jsonl"] = '{"text": "a", "labels": ["a\\nb"]}\n'
    for id, (arguments, expect) in CONVERSIONS.items():
        found.append(Case(f"convert-{id}", ["data", "convert", *arguments], expect, own, check=source_stays))
    for id, (option, expect) in RERANKS.items():
        argv = ["rerank", "--ckpt=linear.ckpt", "--out=new.ckpt", option]
        found.append(Case(f"rerank-{id}", argv, expect))
    for id, (option, expect) in TREES.items():
        found.append(Case(f"tree-{id}", ["tree", "--ckpt=tree.ckpt", option], expect))
    found += [
        Case("tree-of-linear", ["tree", "--ckpt=linear.ckpt"], ERROR),
        Case("convert-fails-onto-itself", Story(interrupted_overwrite)),
        *(Case(f"convert-there-and-back{kind}", round_trip(kind)) for kind in (".jsonl.gz", ".parquet")),
        Case("report-keeps-other-files", Story(report_over_files), needs=("linear",)),
        Case("report-out-is-a-file", ["report", "runs", "--out=tiny.yaml"], ERROR, setup=on_run(lambda run: None),
             needs=("linear",), options={"timeout": 120}),
        Case("report-without-runs", ["report", "."], ERROR),
        Case("compare-cyclic-links", Story(cyclic_links), needs=("linear",)),
        Case("compare-named-pipe", Story(unreadable), needs=("linear",)),
        Case("check-near-nan", ["data", "check", "in.jsonl", "--near=nan"], ERROR, own),
        Case("check-near-2", ["data", "check", "in.jsonl", "--near=2"], ERROR, own),
        Case("stats-of-nothing", ["data", "stats", ""], EITHER, own),
        Case("stats-of-markup", ["data", "stats", "[red]x[/].jsonl"], WORKS, {"[red]x[/].jsonl": GOOD}),
        Case("prepare-unknown", ["data", "prepare", "nothing"], ERROR),
        Case("prepare-root-missing", ["data", "prepare", "Reuters", "--root=nowhere"], ERROR),
        Case("data-unknown", ["data", "delete"], ERROR),
        Case("data-list", ["data", "list"], WORKS, {"own/reuters/train.jsonl": "{"}, options=OWN_DATA),
    ]  # fmt: skip
    return found


def source_stays(box: Box, result: Result) -> None:
    lost_unless(len(box.lines("in.jsonl")) == 40, "the source has other rows")
    lost_unless((box.folder / "tiny.yaml").read_text() == TINY, "another file was overwritten")
    if result.code == 2:
        left = [path.name for path in box.folder.glob(".out*")]
        lost_unless(not left, f"a part of the output stays: {left}")
