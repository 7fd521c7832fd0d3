"""Pictures of a run, for the report page and W&B."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.analysis.canvas import (
    BLUE,
    COLORS,
    GREEN,
    HEIGHT,
    INK,
    ORANGE,
    RED,
    SKY,
    SMALL,
    add_scale,
    canvas,
    fading,
    grid,
    label_log_axis,
    shortened,
    style,
)
from zoo.analysis.curves import training_curves
from zoo.analysis.evidence import Evidence
from zoo.analysis.model_pictures import experts, importances, norms, tsne
from zoo.analysis.reliability_picture import of_predictions
from zoo.analysis.tail import TailPair
from zoo.core.metrics import FREQUENCY_CLASSES, GROUP_TITLES, frequency_class
from zoo.core.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS_COLORS = {"many": BLUE, "medium": GREEN, "few": ORANGE}
MAX_BARS = 4  # runs; more are drawn as lines
MAX_LABELS = 40  # labels with bars; more are drawn as a density
TICK_DISTANCE = 3  # bars
MAX_NAMES = 20  # names below bars


def of_run(run: RunFolder, evidence: Evidence | None) -> dict[str, Figure]:
    """All pictures that a run has the data for, by name."""
    documents = run.label_documents
    figures = {
        "label_distribution": label_distribution(documents),
        "bins": bins({"this run": run.metrics}),
        "reliability": of_predictions(run),
        "curves": training_curves(run.log_rows, [str(stage.get("name")) for stage in run.stages]),
        "importances": importances(run.importances),
    }
    if evidence is not None:
        figures |= {
            "label_correlation": label_correlation(evidence.correlation, documents[evidence.correlated]),
            "norms": norms(documents, evidence.norms),
            "tsne": tsne(evidence.points, label_titles(run), documents),
            "experts": experts(evidence.experts, evidence.divergence),
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


def label_titles(run: RunFolder) -> list[str]:
    """Names of labels, with descriptions that differ from them."""
    pairs = zip(run.label_names, run.label_texts, strict=True)
    return [f"{name}: {text}" if text and text.lower() != name.lower() else name for name, text in pairs]


def label_distribution(documents: np.ndarray) -> Figure | None:
    """Training documents of all labels in descending order, with shares of labels and of (document, label) pairs."""
    falling = np.sort(documents[documents > 0])[::-1]
    if not len(falling):
        return None
    with style():
        figure, (axis,) = canvas()
        classes = frequency_class(falling)
        for name, color in CLASS_COLORS.items():
            inside = classes == FREQUENCY_CLASSES.index(name)
            if not inside.any():
                continue
            first = np.flatnonzero(inside)[0]
            values, sizes = np.unique(falling[inside], return_counts=True)
            edges = first + np.concatenate([[0], np.cumsum(sizes[::-1])])
            pairs = falling[inside].sum() / falling.sum()
            shares = f"{rounded_percent(inside.mean())} of labels, {rounded_percent(pairs)} of pairs"
            axis.stairs(
                values[::-1], edges, fill=True, baseline=0.5, color=color, label=f"{GROUP_TITLES[name]}: {shares}"
            )
        axis.set(yscale="log", ylim=(0.5, falling[0] * 8), xlim=(0, len(falling)))  # room for the legend
        axis.set(xlabel="labels, from frequent to rare", ylabel="training documents")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        label_log_axis(axis.yaxis)
        grid(axis)
        axis.legend(loc="upper right", title="training documents of a label", title_fontsize=SMALL)
    return figure


def label_correlation(correlation: np.ndarray | None, documents: np.ndarray) -> Figure | None:
    """Correlation of labels, from frequent to rare; `documents` are their training documents."""
    if correlation is None or len(correlation) < 2:
        return None
    shown = correlation.astype(float)
    others = ~np.eye(len(shown), dtype=bool)
    most = max(float(np.quantile(np.abs(shown[others]), 0.995)), 0.05)
    shown[~others] = np.nan
    with style():
        figure, (axis,) = canvas()
        image = axis.imshow(shown, cmap=fading(SKY, RED), vmin=-most, vmax=most, interpolation="nearest")
        ticks = np.unique(np.linspace(0, len(shown) - 1, 6).round().astype(int))
        for place in (axis.xaxis, axis.yaxis):
            place.set_ticks(ticks, [f"{documents[tick]:,}" for tick in ticks])
        axis.tick_params("x", rotation=45)
        axis.spines[["top", "right"]].set_visible(True)
        axis.set(xlabel="training documents of the label", ylabel="training documents of the other label")
        add_scale(image, axis, label="correlation", extend="both" if most < 1 else "neither")
    return figure


def bins(metrics: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Macro P@5 in bins of labels: bars for a few runs, lines for more."""
    found = {run: bins_of(values) for run, values in metrics.items()}
    found = {run: values for run, values in found.items() if len(values)}
    if not found:
        return None
    longest = max(map(len, found.values()))
    places = np.arange(1, longest + 1)
    with style():
        figure, (axis,) = canvas(height=HEIGHT + 0.18 * (len(found) - 1))
        for i, (run, values) in enumerate(found.items()):
            color, name = COLORS[i % len(COLORS)], shortened(run, 48)
            if len(found) <= MAX_BARS:
                width = 0.8 / len(found)
                shift = (i - (len(found) - 1) / 2) * width
                axis.bar(places[: len(values)] + shift, 100 * values, width, color=color, label=name)
            else:
                line = ("-", "--", ":")[i // len(COLORS) % 3]
                axis.plot(places[: len(values)], 100 * values, line, marker="o", ms=3, color=color, label=name)
        axis.set(xlabel="bins of labels, from frequent to rare", ylabel="macro P@5, %", xticks=places)
        axis.set_ylim(bottom=0)
        grid(axis)
        if len(found) > 1:
            figure.legend(loc="outside upper left")
    return figure


def bins_of(metrics: Mapping[str, float]) -> np.ndarray:
    """Macro P@5 of each bin, the most frequent first; nan in bins without labels of test documents."""
    names = sorted(name for name in metrics if re.fullmatch(r"macroP@5/bin\d+", name))
    sizes = [metrics.get(name.replace("macroP@5", "labels"), 1.0) for name in names]
    return np.array([metrics[name] if size else np.nan for name, size in zip(names, sizes, strict=True)])


def tail_f1(pair: TailPair, runs: tuple[str, str]) -> Figure | None:
    """F1@5 of rare labels in two runs: bars for a few labels, a density for more."""
    names, documents, one, other = pair.names, pair.documents, pair.one, pair.other
    if not names:
        return None
    first, second = (shortened(run, 40) for run in runs)
    wins = int((one > other).sum()), int((other > one).sum())
    title = f"{len(names):,} labels: {wins[0]:,} better in the first run, {wins[1]:,} in the second"
    if len(names) > MAX_LABELS:
        return one_against_other(one, other, (first, second), title)
    order = np.argsort(-documents, kind="stable")
    places = np.arange(len(order))
    with style():
        figure, (axis,) = canvas(height=HEIGHT + 0.5)
        axis.bar(places - 0.2, 100 * one[order], 0.4, color=BLUE, label=first)
        axis.bar(places + 0.2, 100 * other[order], 0.4, color=ORANGE, label=second)
        if len(order) <= MAX_NAMES:
            axis.set_xticks(places, [shortened(names[i], 16) for i in order], rotation=90)
            axis.set_xlabel("labels, from frequent to rare")
        else:
            counts = documents[order]
            starts: list[int] = []
            for start in np.flatnonzero(np.diff(counts, prepend=-1)).tolist():
                if not starts or start - starts[-1] >= TICK_DISTANCE:
                    starts.append(start)
            axis.set_xticks(starts, [f"{counts[start]:,}" for start in starts])
            axis.set_xlabel("training documents of the label")
        axis.set(ylabel="F1@5, %", ylim=(0, 100), title=title)
        grid(axis)
        figure.legend(loc="outside upper left")
    return figure


def one_against_other(one: np.ndarray, other: np.ndarray, runs: tuple[str, str], title: str) -> Figure:
    with style():
        figure, (axis,) = canvas(height=HEIGHT + 0.6)
        cells = axis.hexbin(
            100 * one,
            100 * other,
            gridsize=18,
            extent=(0, 100, 0, 100),
            bins="log",
            mincnt=1,
            cmap=fading(SKY, least=0.3),  # a single label must be visible
            linewidths=0,
        )
        axis.plot([0, 100], [0, 100], color=INK, linewidth=0.8, linestyle="--")
        axis.set(xlabel=f"first: {runs[0]}", ylabel=f"second: {runs[1]}", title=f"F1@5, %; {title}", aspect="equal")
        scale = add_scale(cells, axis, label="labels")
        label_log_axis(scale.yaxis)
    return figure


def rounded_percent(share: Any) -> str:
    """Whole percent, with a decimal below one."""
    return f"{100 * share:.1f} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
