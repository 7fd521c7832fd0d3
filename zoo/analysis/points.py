"""Figures of papers: metrics as functions of a setting, or of several variants as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zoo.analysis.canvas import COLORS, canvas, grid, style
from zoo.analysis.comparison import ComparedRuns
from zoo.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def point_curves(rows: Mapping[str, ComparedRuns], columns: Sequence[str], x_label: str) -> Figure:
    """A line per metric, with standard deviations over seeds; names of rows are places on the x axis."""
    try:
        places = [float(name) for name in rows]
    except ValueError as error:
        raise UserError(f"rows of a figure must be numbers: {error}") from None
    with style():
        figure, (axis,) = canvas()
        for column, color in zip(columns, COLORS, strict=False):
            values = [row.value(column) for row in rows.values()]
            found = sorted((place, value) for place, value in zip(places, values, strict=True) if value is not None)
            axis.errorbar(
                [place for place, _ in found],
                [100 * value.mean for _, value in found],
                [100 * (value.deviation or 0) for _, value in found],
                color=color,
                linewidth=1.4,
                marker="o",
                markersize=3,
                label=column,
            )
        axis.set_xlabel(x_label)
        axis.set_ylabel("%")
        grid(axis)
        figure.legend(loc="outside lower center", ncols=len(columns))
    return figure


def bars(rows: Mapping[str, ComparedRuns], columns: Sequence[str]) -> Figure:
    """A group of bars per metric, one bar per row, with standard deviations over seeds."""
    with style():
        figure, (axis,) = canvas()
        width = 0.8 / len(rows)
        for i, (name, row) in enumerate(rows.items()):
            values = [row.value(column) for column in columns]
            found = [(place, value) for place, value in enumerate(values) if value is not None]
            axis.bar(
                [place + (i + 0.5) * width - 0.4 for place, _ in found],
                [100 * value.mean for _, value in found],
                width,
                yerr=[100 * (value.deviation or 0) for _, value in found],
                color=COLORS[i % len(COLORS)],
                error_kw={"elinewidth": 0.8},
                label=name,
            )
        axis.set_xticks(range(len(columns)), list(columns))
        axis.set_ylabel("%")
        grid(axis)
        figure.legend(loc="outside lower center", ncols=min(len(rows), 4))
    return figure
