"""Training curves of a run, from the rows of its `metrics.csv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zoo.analysis.canvas import BLUE, COLORS, GREEN, HEIGHT, INK, ORANGE, SMALL, canvas, grid, shortened, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALIDATED = {"nDCG@5": BLUE, "P@1": ORANGE, "PSP@5": GREEN}
LETTER = 0.0165  # width of a letter, as a fraction of the width of the axes
WIDE_RANGE = 20  # ratio of losses above which the axis is logarithmic

LogRow = Mapping[str, str]


@dataclass(frozen=True)
class Span:
    """Steps of a training stage; `start` and `stop` are equal if it has no epochs."""

    name: str
    start: float
    stop: float


def training_curves(rows: Sequence[LogRow], stages: Sequence[str] = ()) -> Figure | None:
    """Loss and validation metrics by step; `stages` are the names of all stages in order."""
    losses = {
        name: series(rows, name)
        for name in sorted({column for row in rows for column in row})
        if re.fullmatch(r"train/.+/loss_(step|epoch)", name)
    }
    checked = {name: series(rows, f"val/{name}") for name in VALIDATED}
    losses, checked = ({k: v for k, v in found.items() if len(v)} for found in (losses, checked))
    if max(map(len, [*losses.values(), *checked.values()]), default=0) < 2:  # a point is not a curve
        return None
    panels = [draw for draw, found in ((draw_losses, losses), (draw_validation, checked)) if found]
    with style():
        figure, axes = canvas(len(panels), HEIGHT + 0.4)
        for draw, axis in zip(panels, axes, strict=True):
            draw(axis, losses if draw is draw_losses else checked)
            grid(axis)
        marked = spans(rows, stages)
        if len(marked) > 1:
            mark(axes, marked)
        if checked:
            figure.legend(loc="outside lower center", ncols=len(checked))
        axes[-1].set_xlabel("step")
        axes[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def series(rows: Sequence[LogRow], column: str) -> np.ndarray:
    """Steps and finite values, (n, 2)."""
    found = [(number(row.get("step")), number(row.get(column))) for row in rows if row.get(column)]
    points = np.array(found, dtype=float).reshape(-1, 2)
    kept: np.ndarray = points[np.isfinite(points).all(axis=1)]
    return kept


def number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def spans(rows: Sequence[LogRow], stages: Sequence[str]) -> list[Span]:
    """Stages of a run, from the log rows of their starts."""
    starts = dict[int, float]()
    for step, index in series(rows, "stage"):
        starts.setdefault(int(index), float(step))  # a resumed run may log a start again
    if not starts:
        return []
    order = sorted(starts)
    steps = [number(row.get("step")) for row in rows]
    stops = [*(starts[index] for index in order[1:]), max((s for s in steps if np.isfinite(s)), default=0.0)]
    return [
        Span(stages[index] if 0 <= index < len(stages) else f"stage {index + 1}", starts[index], stop)
        for index, stop in zip(order, stops, strict=True)
    ]


def draw_losses(axis: Axes, losses: Mapping[str, np.ndarray]) -> None:
    """Draw the losses of each stage: thin lines by step, points by epoch."""
    ordered = dict(sorted(losses.items(), key=lambda item: float(item[1][0, 0])))
    stages = list(dict.fromkeys(name.rpartition("/")[0] for name in ordered))
    for name, points in ordered.items():
        color = COLORS[stages.index(name.rpartition("/")[0]) % len(COLORS)]
        if name.endswith("_epoch"):
            axis.plot(*points.T, color=color, linewidth=1.4, marker="o", markersize=2.5)
        else:
            axis.plot(*points.T, color=color, linewidth=0.8, alpha=0.5)
    values = np.concatenate([points[:, 1] for points in losses.values()])
    if values.min() > 0 and values.max() / values.min() > WIDE_RANGE:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.yaxis.set_minor_formatter(lambda value, _: "")
    axis.set_ylabel("training loss")


def draw_validation(axis: Axes, checked: Mapping[str, np.ndarray]) -> None:
    for name, points in checked.items():
        steps, values = points.T
        axis.plot(steps, 100 * values, color=VALIDATED[name], linewidth=1.4, marker="o", markersize=2.5, label=name)
    axis.set_ylabel("validation, %")


def mark(axes: Sequence[Axes], marked: Sequence[Span]) -> None:
    """Shade every other stage, mark those without epochs by lines, and write names above the first axes."""
    for i, span in enumerate(marked):
        for axis in axes:
            if span.stop == span.start:
                axis.axvline(span.start, color=INK, linewidth=0.8, linestyle=":")
            elif i % 2 == 0:
                axis.axvspan(span.start, span.stop, color="#808080", alpha=0.15, linewidth=0)
    low, high = axes[0].get_xlim()
    begun: dict[float, list[str]] = {}
    for span in marked:
        begun.setdefault(span.start, []).append(span.name)
    level, taken = 0, -np.inf
    for step, names in begun.items():
        text = shortened(" → ".join(names), 48)
        width = LETTER * len(text)
        left = max(min((step - low) / (high - low), 1 - width), 0.0)  # the name of a late stage ends with the axes
        level = level + 1 if left < taken else 0
        taken = max(left + width, taken if level else -np.inf)
        place = (left, 1.02 + 0.12 * level)
        axes[0].annotate(text, place, xycoords="axes fraction", fontsize=SMALL, va="bottom", ha="left")
