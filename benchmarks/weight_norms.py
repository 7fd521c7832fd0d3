"""The figure of docs/results/ranknet-taug.md: norms of label weights by training documents, before and after Taug.

    python benchmarks/weight_norms.py eurlex --data.limit_train=6000 --picture docs/images/weight_norms.svg

Fits a one-vs-rest SVM for all labels, and separate ones for head labels and for tail labels with augmented documents.
Prints rank correlations, and the ratio of the mean weight norms of head and tail labels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from jobs import markdown
from scipy.stats import spearmanr
from tail_labels import CORPORA, FRACTION, WAYS, experiment, run

from zoo.training.checkpoint import rebuild

SVM = {"class_path": "OneVsRestSvm", "init_args": {"prune": 0}}
MODELS = ("one-vs-rest SVM", "decoupled only", "Taug-d", "Taug-s", "Taug-ds")
SHOWN = ("one-vs-rest SVM", "Taug-ds")


def norms(options: argparse.Namespace, model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of training documents of each label, and the norm of its weights."""
    if model in WAYS:
        head = {"class_path": "Decoupled", "init_args": {"fraction": FRACTION, "head": SVM, "tail": SVM}}
        augment = {"class_path": "TailAugment", "init_args": {"stage": "tail", "fraction": FRACTION, **WAYS[model]}}
        stages = [("head", ["head.fit"]), ("tail", ["tail.fit"]), ("calibrate", ["calibrate"])]
        config = experiment(options.corpus, head, stages, callbacks=[augment])
    else:
        config = experiment(options.corpus, SVM, [("fit", ["fit"])])
    folder, _ = run(options, f"norms-{options.corpus}-{model.replace(' ', '-')}", config)
    module = rebuild(folder / "checkpoints" / "last.ckpt")
    lengths = module.head.weight_norms()
    assert lengths is not None
    return torch.tensor(module.space.counts), lengths


def row(model: str, counts: torch.Tensor, lengths: torch.Tensor) -> list[str]:
    first = int(FRACTION * len(counts))
    ranks = float(spearmanr(counts, lengths).statistic)
    tail = float(spearmanr(counts[first:], lengths[first:]).statistic)
    return [model, f"{ranks:.3f}", f"{tail:.3f}", f"{float(lengths[:first].mean() / lengths[first:].mean()):.2f}"]


def draw(found: dict[str, tuple[torch.Tensor, torch.Tensor]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "zoo"  # reproducible files
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, model in zip(axes, SHOWN, strict=True):
        counts, lengths = found[model]
        first = int(FRACTION * len(counts))
        jitter = np.random.default_rng(0).uniform(0.9, 1.1, len(counts))  # separates labels with equal counts
        x = counts.numpy() * jitter
        dots = {"s": 4, "rasterized": True}  # thousands of vector shapes would make a large file
        axis.scatter(x[first:], lengths[first:], alpha=0.35, color="tab:orange", label="tail labels", **dots)
        axis.scatter(x[:first], lengths[:first], alpha=0.5, color="tab:blue", label="head labels", **dots)
        ranks = float(spearmanr(counts, lengths).statistic)
        axis.set(xscale="log", xlabel="training documents of the label", title=f"{model}: rank correlation {ranks:.2f}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("norm of its weights")
    axes[0].legend(markerscale=3)
    figure.savefig(path, metadata={"Date": None}, facecolor="white", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--picture", help="svg or png file for the plot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/weight_norms")
    options, options.rest = parser.parse_known_args()
    found = {model: norms(options, model) for model in MODELS}
    header = [options.corpus, "rank correlation", "among tail labels", "mean of head over mean of tail labels"]
    print(markdown(header, [row(model, *values) for model, values in found.items()]))
    if options.picture:
        Path(options.picture).parent.mkdir(parents=True, exist_ok=True)
        draw(found, options.picture)


if __name__ == "__main__":
    main()
