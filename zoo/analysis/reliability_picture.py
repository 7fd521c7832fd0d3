"""Reliability diagrams: how often labels are correct, by their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from zoo.analysis.canvas import COLORS, HEIGHT, INK, canvas, grid, style
from zoo.core.metrics import MACRO_K, Bools, Floats, reliability
from zoo.core.ragged import Lists
from zoo.core.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 5  # candidates of a point; the share of fewer is noise


def diagram(curves: Mapping[str, tuple[Floats, Bools]]) -> Figure | None:
    """Share of correct labels by score, for scores and hits by name; the area of a point grows with its candidates."""
    if not any(len(scores) for scores, _ in curves.values()):
        return None
    with style():
        figure, (axis,) = canvas(height=HEIGHT + 0.5)
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
        for color, (name, (scores, hits)) in zip(COLORS, curves.items(), strict=False):
            sizes, mean, share = reliability(scores, hits)
            shown = sizes >= min(LEAST, sizes.max())
            axis.plot(mean[shown], share[shown], color=color, linewidth=1.2, label=name)
            area = 4 + 90 * np.sqrt(sizes[shown] / sizes.max())
            axis.scatter(mean[shown], share[shown], s=area, color=color, alpha=0.6, linewidths=0)
        axis.set(xlabel="score", ylabel="share of correct labels", xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
        axis.set_aspect("equal")
        grid(axis)
        if len(curves) > 1:
            axis.legend(loc="upper left")
    return figure


def of_predictions(run: RunFolder) -> Figure | None:
    """Reliability of the best candidates of the test documents; None without predictions."""
    if run.predictions is None:
        return None
    truth, found, scores = (Lists.of_column(run.predictions[name]) for name in ("truth", "labels", "scores"))
    top = (found.places < MACRO_K) & (truth.sizes > 0)[found.rows]
    width = max(truth.values.max(initial=0), found.values.max(initial=0)) + 1
    hits = np.isin(found.rows * width + found.values, truth.rows * width + truth.values)
    return diagram({run.name: (scores.values[top].astype(float).clip(0, 1), hits[top])})
