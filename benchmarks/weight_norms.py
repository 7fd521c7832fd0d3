"""The figure of docs/results/ranknet-taug.md: norms of label weights by training documents, before and after Taug.

    python benchmarks/weight_norms.py eurlex --data.limit_train=6000 --picture docs/images/weight_norms.svg
    python benchmarks/weight_norms.py eurlex --data.limit_train=6000 --engine Bonsai --copies 0 1 4 8

Fits an engine for all labels, and separate ones for head labels and for tail labels with augmented documents. Prints
rank correlations of norms and training documents (Figures 1 and 4), the ratio of the mean weight norms of head and tail
labels, and the rank correlation of norms and the frequency among the five best labels of test documents (Theorem 1).
`--copies` adds a row for each number of copies of Taug-ds (Figure 2, left).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from jobs import markdown
from scipy.stats import spearmanr
from tail_labels import CORPORA, FRACTION, WAYS, experiment, run

from zoo.training.checkpoint import build_data, rebuild

ENGINES: dict[str, dict[str, Any]] = {
    "OneVsRestSvm": {"class_path": "OneVsRestSvm", "init_args": {"prune": 0}},
    "Bonsai": {"class_path": "Bonsai", "init_args": {"prune": 0}},
}
MODELS = ("all labels", "decoupled only", "Taug-d", "Taug-s", "Taug-ds")
SHOWN = ("all labels", "Taug-ds")
TOP = 5  # labels of a document that count as predicted


class Norms(NamedTuple):
    counts: torch.Tensor  # (num_labels,) training documents of each label
    lengths: torch.Tensor  # (num_labels,) norms of their weights
    predicted: torch.Tensor  # (num_labels,) test documents that have it among the best


def norms(options: argparse.Namespace, model: str) -> Norms:
    engine, base = ENGINES[options.engine], model.split(",")[0]
    if base in WAYS:
        way = WAYS[base] | ({"copies": int(model.split()[-1])} if "," in model else {})
        head = {"class_path": "Decoupled", "init_args": {"fraction": FRACTION, "head": engine, "tail": engine}}
        augment = {"class_path": "TailAugment", "init_args": {"stage": "tail", "fraction": FRACTION, **way}}
        stages = [("head", ["head.fit"]), ("tail", ["tail.fit"]), ("calibrate", ["calibrate"])]
        config = experiment(options.corpus, head, stages, callbacks=[augment])
    else:
        config = experiment(options.corpus, engine, [("fit", ["fit"])])
    name = f"norms-{options.engine}-{options.corpus}-{model.replace(',', '').replace(' ', '-')}"
    folder, _ = run(options, name, config)
    module = rebuild(folder / "checkpoints" / "last.ckpt").eval()
    lengths = module.head.weight_norms()
    assert lengths is not None
    data = build_data(yaml.safe_load(module.config_text or "")["data"])
    predicted = torch.zeros(module.space.num_labels + 1)  # the first one counts padding
    for batch in data.pass_dataloader("test"):
        predicted += torch.bincount(module.head.rank(module(batch), TOP).labels.flatten() + 1, minlength=len(predicted))
    return Norms(torch.tensor(module.space.counts), lengths, predicted[1:])


def row(model: str, found: Norms) -> list[str]:
    counts, lengths, predicted = found
    first = int(FRACTION * len(counts))
    ranks = float(spearmanr(counts, lengths).statistic)
    tail = float(spearmanr(counts[first:], lengths[first:]).statistic)
    ratio, theorem = float(lengths[:first].mean() / lengths[first:].mean()), spearmanr(predicted, lengths).statistic
    return [model, f"{ranks:.3f}", f"{tail:.3f}", f"{ratio:.2f}", f"{float(theorem):.3f}"]


def draw(found: dict[str, Norms], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "zoo"  # reproducible files
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, model in zip(axes, SHOWN, strict=True):
        counts, lengths, _ = found[model]
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
    parser.add_argument("--engine", choices=list(ENGINES), default="OneVsRestSvm")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--copies", type=int, nargs="*", default=[], help="numbers of copies of Taug-ds")
    parser.add_argument("--picture", help="svg or png file for the plot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/weight_norms")
    options, options.rest = parser.parse_known_args()
    models = [*options.models, *(f"Taug-ds, copies {copies}" for copies in options.copies)]
    found = {model: norms(options, model) for model in models}
    header = [options.corpus, "rank correlation", "among tail labels", "mean of head over mean of tail labels"]
    print(markdown([*header, f"with frequency among the best {TOP}"], [row(*item) for item in found.items()]))
    if options.picture:
        Path(options.picture).parent.mkdir(parents=True, exist_ok=True)
        draw(found, options.picture)


if __name__ == "__main__":
    main()
