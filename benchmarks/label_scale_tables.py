"""Tables and plot of the results of `label_scale.py`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import markdown

HEADS = ("PLT", "LightXML", "AttentionXML", "Linear")
COLORS = {  # color-blind safe palette of Okabe and Ito
    "PLT": "#0072B2",
    "LightXML": "#56B4E9",
    "AttentionXML": "#D55E00",
    "Linear": "#009E73",
    "encoder": "#666666",
}
Result = dict[str, Any]


def read_results(options: Any) -> dict[tuple[str, int], Result]:
    file = Path(options.out) / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf8").splitlines()] if file.is_file() else []
    return {(row["what"], row["labels"]): row for row in rows}


def head_results(rows: dict[tuple[str, int], Result]) -> list[Result]:
    return [
        rows[key]
        for key in sorted(rows, key=lambda key: (HEADS.index(key[0]) if key[0] in HEADS else -1, key[1]))
        if key[0] in HEADS
    ]


def tables(options: Any) -> str:
    rows = read_results(options)
    header = ["head", "labels", "candidates", "step, ms", "encoder", "head", "clipping and update"]
    header += ["step with all labels", "peak GB", "ranking, ms per document", "single document, ms", "load"]
    lines = []
    for row in head_results(rows):
        step = row["step"]
        numbers = [step["ms"], step["encoder"], step["head"], step["clipping"] + step["optimizer"]]
        numbers += [row["step_all"]["ms"]]
        ranks = [f"{row[name]['ms']:,.2f}" for name in ("rank", "single")]
        cells = [row["what"], f"{row['labels']:,}", f"{row['candidates']:,}", *(f"{n:,.0f}" for n in numbers)]
        lines.append([*cells, f"{row['gb']:.2f}", *ranks, f"{row['load']:.1f}"])
    parts = [markdown(header, lines), markdown(*tree_table(rows)), markdown(*growth_table(rows))]
    return "\n\n".join(parts)


def tree_table(rows: dict[tuple[str, int], Result]) -> tuple[list[str], list[list[str]]]:
    trees = sorted((row for (what, _), row in rows.items() if what == "tree"), key=lambda row: int(row["labels"]))
    lines = [
        [f"{t['labels']:,}", " > ".join(f"{w:,}" for w in t["widths"]), f"{t['seconds']:.1f}", f"{t['gb']:.2f}"]
        for t in trees
    ]
    return ["labels", "clusters by level", "building, s", "peak GB"], lines


def growth_table(rows: dict[tuple[str, int], Result]) -> tuple[list[str], list[list[str]]]:
    """Ratios of each size to the smallest size of the same head."""
    parts: dict[str, Callable[[Result], float]] = {
        "head's part of a step": lambda row: float(row["step"]["head"]),
        "clipping and update": lambda row: float(row["step"]["clipping"] + row["step"]["optimizer"]),
        "step": lambda row: float(row["step"]["ms"]),
        "head's part of a ranking": lambda row: float(row["rank"]["head"]),
        "ranking alone": lambda row: float(row["single"]["ms"]),
        "candidates": lambda row: float(row["candidates"]),
    }
    lines = []
    for row in head_results(rows):
        first = min((r for r in head_results(rows) if r["what"] == row["what"]), key=lambda r: int(r["labels"]))
        ratios = [part(row) / part(first) for part in parts.values()]
        ratios += [math.log(row["labels"]) / math.log(first["labels"]), row["labels"] / first["labels"]]
        lines.append([row["what"], f"{row['labels']:,}", *(f"{ratio:,.2f}" for ratio in ratios)])
    return ["ratio to the smallest size", "labels", *parts, "log of labels", "number of labels"], lines


def plot(options: Any) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: the plot needs matplotlib: pip install 'xmc-zoo[benchmarks]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "label_scale", "axes.spines.top": False}
    pyplot.rcParams.update(style | {"axes.spines.right": False, "font.family": "sans-serif"})
    heads = head_results(read_results(options))
    panels = {
        "training step of 40 documents, ms": lambda row: row["step"]["ms"],
        "peak memory of training, GB": lambda row: row["gb"],
        "ranking, ms per document": lambda row: row["rank"]["ms"],
    }
    figure, places = pyplot.subplots(1, len(panels), figsize=(10.5, 3.4), layout="constrained")
    for place, (title, value) in zip(places, panels.items(), strict=True):
        lines = {name: [(r["labels"], value(r)) for r in heads if r["what"] == name] for name in HEADS}
        if title.startswith("training"):
            lines["encoder"] = [(r["labels"], r["step"]["encoder"]) for r in heads if r["what"] == HEADS[0]]
        draw(place, title, {name: sorted(points) for name, points in lines.items() if points})
    figure.savefig(options.plot, dpi=150, metadata={"Date": None} if Path(options.plot).suffix == ".svg" else None)
    print(f"wrote {options.plot}", file=sys.stderr)


def draw(place: Any, title: str, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draw lines on logarithmic axes, each labelled at its end."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    place.set(xscale="log", yscale="log", xlabel="labels")
    place.set_title(title, loc="left", fontsize=9)
    for name, points in lines.items():
        style = {"color": COLORS[name], "linewidth": 1 if name == "encoder" else 1.8}
        place.plot(*zip(*points, strict=True), marker="" if name == "encoder" else "o", markersize=4, **style)
    sizes = sorted({x for points in lines.values() for x, _ in points})
    low, high = (end(y for points in lines.values() for _, y in points) for end in (min, max))
    place.set_xlim(sizes[0] / 1.3, sizes[-1] * 9)  # room for the line labels
    place.set_ylim(low / 1.4, high * 1.4)
    place.xaxis.set(major_locator=FixedLocator(sizes), minor_locator=NullLocator())
    place.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:,.0f}k"))
    steps = (1, 2, 5) if high / low < 50 else (1,)
    place.yaxis.set(major_locator=LogLocator(subs=steps), minor_locator=NullLocator())
    place.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    place.grid(axis="y", color="#dddddd", linewidth=0.5)
    for (name, points), y in zip(
        lines.items(), apart([points[-1][1] for points in lines.values()], place), strict=True
    ):
        settings = {"color": COLORS[name], "va": "center", "fontsize": 8.5}
        place.annotate(name, (points[-1][0], y), (6, 0), textcoords="offset points", **settings)


def apart(heights: Sequence[float], place: Any) -> list[float]:
    """Move labels up so that they do not overlap."""
    low, high = place.get_ylim()
    gap = (high / low) ** 0.07
    found, last = list(heights), 0.0
    for i in sorted(range(len(found)), key=lambda i: found[i]):
        found[i] = last = max(found[i], last * gap)
    return found
