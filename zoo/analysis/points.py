"""Metrics as functions of a setting, as in the sensitivity figures of papers."""

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
