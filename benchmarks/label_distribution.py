"""LSFA, Figure 1a: training examples of each label after augmentation of documents, and of feature-label pairs.

    python benchmarks/label_distribution.py eurlex57k --head_count 50 --samples 10 --picture distribution.svg

Each tail label (fewer than `--head_count` training documents) gets `--samples` further examples: copies of its
documents, which count for all their labels, or generated features, which count for the label alone.
"""

from __future__ import annotations

import argparse

import torch
from jobs import markdown
from prototypes import CORPORA
from torch import Tensor

from heads.augment.label_distribution import LabelDistribution, label_distribution

FREQUENT = 100  # documents, as in the paper
NAMES = {"original": "original", "sample_level": "sample-level", "pair_level": "pair-level"}


def row(name: str, counts: Tensor) -> list[str]:
    counts = counts[counts > 0]
    spread = counts.sort().values
    place = torch.arange(1, len(spread) + 1).double()
    gini = float((2 * place - len(spread) - 1) @ spread / (len(spread) * spread.sum()))
    frequent = 100 * float((counts > FREQUENT).double().mean())
    shares = f"{frequent:.1f}", f"{float(spread[-1] / spread.median()):.1f}", f"{gini:.3f}"
    return [name, f"{float(spread[-1]):,.0f}", f"{float(spread.median()):,.0f}", *shares]


def draw(found: LabelDistribution, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "zoo"  # reproducible files
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    order = found.original.argsort(descending=True, stable=True)
    for field, name in NAMES.items():
        axis.plot(getattr(found, field)[order].clamp_min(0.5), label=name, linewidth=1)
    axis.set(yscale="log", xlabel="label, by training documents", ylabel="training examples")
    axis.legend()
    figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--head_count", type=int, default=50)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--limit_train", type=int)
    parser.add_argument("--picture", help="file for the figure")
    options = parser.parse_args()
    data = CORPORA[options.corpus](limit_train=options.limit_train)
    is_tail = ~data.space.head_by_count(options.head_count)
    found = label_distribution(data.train_targets(), is_tail, options.samples)
    columns = ["", "most", "median", f"% of labels with more than {FREQUENT}", "most / median", "Gini"]
    print(f"{int(is_tail.sum())} of {len(is_tail)} labels are tail\n")
    print(markdown(columns, [row(name, getattr(found, field)) for field, name in NAMES.items()]))
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
