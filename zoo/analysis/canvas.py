"""Style of all pictures: axes to draw on, and export to SVG."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

INK = "#010203"  # placeholder for text and lines, replaced by the text color of the page
DARK = "#1f2328"  # text and lines in separate files, which have a white background
# The color-blind safe palette of Okabe and Ito, without yellow, which is hard to see on white
BLUE, ORANGE, GREEN, PURPLE, RED, SKY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)
WIDTH, HEIGHT = 4.6, 3.2  # inches; at 360 pixels, the smallest text has 9
TEXT, SMALL = 9.0, 8.5  # points
DPI = 160  # of rasterized elements
MANY_POINTS = 500  # rasterized, or the file would be large
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the first ships with matplotlib
    "font.size": TEXT,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": TEXT,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "xtick.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": INK,
    "ytick.labelsize": SMALL,
    "svg.fonttype": "none",  # keep text as text
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the zoo's matplotlib settings, without warnings about missing glyphs."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser's fonts have them
        yield


def canvas(rows: int = 1, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure with axes below each other; to be used within `style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])
    for axis in axes:
        axis.set_facecolor("none")
        # matplotlib creates ticks when it draws, which may be outside of `style`
        axis.tick_params(color=INK, labelcolor=INK, labelsize=SMALL)
    return figure, axes


def grid(axis: Axes, direction: Literal["x", "y", "both"] = "y") -> None:
    axis.grid(axis=direction, color="#808080", alpha=0.3, linewidth=0.6)


def label_log_axis(axis: Any) -> None:
    """Write out the numbers of a logarithmic axis: powers of ten, and 2 and 5 times these if there is only one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(max(low, 1e-12))) + 1
    axis.set_major_locator(LogLocator(subs=(1.0,) if powers > 1 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def fading(color: str, other: str | None = None, least: float = 0.0) -> ListedColormap:
    """Color map from transparent to a color; with `other`, from that color over transparent."""
    from matplotlib.colors import ListedColormap, to_rgba

    steps = [least + (1 - least) * step / 127 for step in range(128)]
    shades = [to_rgba(color, step) for step in steps]
    return ListedColormap(([to_rgba(other, step) for step in reversed(steps)] if other else []) + shades)


def add_scale(image: ScalarMappable, axis: Axes, **options: Any) -> Axes:
    """Add a color bar next to the axes."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, ax=axis, **options)
    bar.solids.set_rasterized(True)  # type: ignore[union-attr]  # transparent shapes would have visible seams
    bar.outline.set_edgecolor(INK)
    bar.ax.set_facecolor("none")
    bar.ax.tick_params(which="both", color=INK, labelcolor=INK, labelsize=SMALL)
    return bar.ax


def shortened(name: str, longest: int = 24) -> str:
    """Truncate a name to one line, and escape matplotlib's math mode."""
    name = " ".join(name.split())
    short = name if len(name) <= longest else f"{name[: longest - 1].rstrip()}…"
    return short.replace("$", r"\$")


def svg(figure: Figure, name: str, ink: str = "currentColor", background: str = "none") -> str:
    """The picture as a reproducible `<svg>` element, with ids prefixed by `name`."""
    import matplotlib

    buffer = io.BytesIO()
    with style(), matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            dpi=DPI,
            facecolor=background,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue().decode("utf8")
    text = text[text.index("<svg") :].replace(INK, ink)
    return re.sub(r"<[^>]+>", lambda tag: re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", tag[0]), text)


def svg_file(figure: Figure, name: str) -> str:
    """The picture as a separate file, dark on white, so that it works on any background."""
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg(figure, name, DARK, "white")}'
