"""Pictures of a trained model: norms of weights, features, disagreement of experts, and importances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.analysis.canvas import (
    COLORS,
    HEIGHT,
    INK,
    MANY_POINTS,
    RED,
    SKY,
    canvas,
    fading,
    grid,
    label_log_axis,
    shortened,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zoo.analysis.evidence import Points

MIN_POINTS = 5  # of t-SNE
MOST_FEATURES = 20  # whose importance is shown
NEAR = 1.25  # the median is over labels within this factor in frequency


def norms(documents: np.ndarray, lengths: np.ndarray | None) -> Figure | None:
    """Norm of each label's weights by its number of training documents, with a running median."""
    from scipy.stats import spearmanr

    if lengths is None:
        return None
    known = (documents[: len(lengths)] > 0) & np.isfinite(lengths[: len(documents)])
    documents, lengths = documents[: len(lengths)][known], lengths[: len(documents)][known]
    if len(documents) < 2:
        return None
    jitter = np.random.default_rng(0).uniform(0.93, 1.07, len(documents))  # separates labels with equal counts
    varies = len(set(documents.tolist())) > 1 and len(set(lengths.tolist())) > 1
    title = f"rank correlation {spearmanr(documents, lengths).statistic:.2f}" if varies else None
    with style():
        figure, (axis,) = canvas()
        axis.scatter(
            documents * jitter,
            lengths,
            s=6 if len(documents) > MANY_POINTS else 14,
            alpha=0.6,
            linewidths=0,
            color=SKY,
            label="a label",
            rasterized=len(documents) > MANY_POINTS,
        )
        axis.plot(*running_median(documents, lengths), color=RED, linewidth=2, label="running median")
        axis.set(xscale="log", xlabel="training documents of the label", ylabel="norm of its weights", title=title)
        label_log_axis(axis.xaxis)
        grid(axis)
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def running_median(documents: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the axis of documents, and the median of the labels near each."""
    places = np.unique(np.geomspace(1, documents.max(), 40).round())
    near = [(documents >= place / NEAR) & (documents <= place * NEAR) for place in places]
    kept = [(place, np.median(values[inside])) for place, inside in zip(places, near, strict=True) if inside.any()]
    return np.array([place for place, _ in kept]), np.array([median for _, median in kept])


def tsne(points: Points | None, names: Sequence[str], documents: np.ndarray) -> Figure | None:
    """t-SNE of the features of a few labels; generated features are hollow."""
    if points is None or len(points.values) < MIN_POINTS or points.values.shape[1] < 2:
        return None
    if not np.isfinite(points.values).all() or np.ptp(points.values, axis=0).max() == 0:
        return None
    plane = spread(points.values)
    shown = list(dict.fromkeys(points.labels.tolist()))
    with style():
        figure, (axis,) = canvas(height=HEIGHT + 0.17 * len(shown))
        for i, label in enumerate(shown):
            color, mine = COLORS[i % len(COLORS)], points.labels == label
            real, made = plane[mine & ~points.generated], plane[mine & points.generated]
            text = f"{shortened(names[label], 34)}: {documents[label]:,} documents"
            axis.scatter(made[:, 0], made[:, 1], s=14, facecolors="none", edgecolors=color, linewidths=0.7, alpha=0.6)
            axis.scatter(real[:, 0], real[:, 1], s=14, color=color, linewidths=0, label=text)
        if points.generated.any():
            axis.scatter([], [], s=14, facecolors="none", edgecolors=INK, linewidths=0.7, label="generated")
        axis.set(xticks=[], yticks=[])
        axis.spines[["top", "right"]].set_visible(True)
        figure.legend(loc="outside lower left")
    return figure


def spread(values: np.ndarray) -> np.ndarray:
    """t-SNE, (n, 2); in a single thread, so that it is reproducible."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        perplexity = min(30.0, (len(values) - 1) / 3)
        found: np.ndarray = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(values)
    return found


def experts(names: Sequence[str], divergence: np.ndarray | None) -> Figure | None:
    """Mean divergence between the predictions of experts."""
    if divergence is None or len(names) < 2:
        return None
    with style():
        figure, (axis,) = canvas()
        axis.imshow(divergence, cmap=fading(SKY), vmin=0, vmax=max(1.4 * divergence.max(), 1e-9))
        texts = [shortened(name, 14) for name in names]
        axis.set_xticks(range(len(names)), texts)
        axis.set_yticks(range(len(names)), texts)
        for (row, column), value in np.ndenumerate(divergence):
            axis.text(column, row, f"{value:.3g}", ha="center", va="center")
        axis.spines[["top", "right"]].set_visible(True)
        axis.set(xlabel="from expert", ylabel="divergence of expert")
    return figure


def importances(shares: Mapping[str, float]) -> Figure | None:
    """Share of each feature in the gain of a ranker's trees, the largest on top."""
    best = sorted(shares.items(), key=lambda item: -item[1])[:MOST_FEATURES]
    if not best:
        return None
    with style():
        figure, (axis,) = canvas(height=0.6 + 0.17 * len(best))
        names = [shortened(name.replace("_", " "), 34) for name, _ in reversed(best)]
        axis.barh(range(len(best)), [100 * share for _, share in reversed(best)], color=SKY)
        axis.set_yticks(range(len(best)), names)
        axis.set(xlabel="share of the gain in %")
        grid(axis, "x")
    return figure
