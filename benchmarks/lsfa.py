"""The tables of docs/results/lsfa.md: LSFA, its ablations, AttentionXML without a tree, Joint.

    python benchmarks/lsfa.py reuters --seeds 0 1 2 --epochs 5 --average_from 3 --jobs 2 --out runs/lsfa_table
    python benchmarks/lsfa.py eurlex --epochs 8 --negatives 300 --jobs 2 --out runs/lsfa_table \\
        --data.limit_train=12000 --data.max_length=100 --data.batch_size=40 --data.limit_val=1000 \\
        --model.backbone.hidden=100

A, B, C and D are the variants of the paper's Figure 4. Variants that differ only in the last stages share the first
stage. Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from jobs import cell, fit, markdown, results, run_parallel

NO_PSC = ("--model.head.psc_weight=0",)
NO_AUGMENTATION = ("--model.head.samples=0",)
ONE_FEATURE = ("--model.head.label_specific=false", "--model.backbone.pooling=attention")
PAPER = ("--model.head.feat_dim=null",)  # no layer between attention and classifier
WIDTH = {"reuters": 300, "eurlex": 200}  # of this layer in the other variants
# experiment, stage that `--epochs` applies to, overrides
WHOLE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "LSFA (A)": ("lsfa", "representation", ()),
    "no PSC (B)": ("lsfa", "representation", NO_PSC),
    "no PSC, no augmentation, no label attention (D)": (
        "lsfa",
        "representation",
        (*NO_PSC, *NO_AUGMENTATION, *ONE_FEATURE),
    ),
    "A without the ReLU layer": ("lsfa", "representation", PAPER),
    "AttentionXML, flat": ("attentionxml", "main", ()),
    "Joint": ("joint", "main", ()),
}
# run that provides the first stage, overrides
ENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no augmentation": ("LSFA (A)", NO_AUGMENTATION),
    "first stage only": (
        "LSFA (A)",
        (*NO_AUGMENTATION, "--model.head.restart=warm", "--stages.adjust.epochs=0"),
    ),
    "no PSC, no augmentation (C)": ("no PSC (B)", (*NO_PSC, *NO_AUGMENTATION)),
    "neither ReLU layer nor augmentation": ("A without the ReLU layer", (*PAPER, *NO_AUGMENTATION)),
}
ORDER = [
    "LSFA (A)",
    "no augmentation",
    "first stage only",
    "no PSC (B)",
    "no PSC, no augmentation (C)",
    "no PSC, no augmentation, no label attention (D)",
    "A without the ReLU layer",
    "neither ReLU layer nor augmentation",
    "AttentionXML, flat",
    "Joint",
]
RANKING = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
BINS = 10


def slug(name: str) -> str:
    return re.sub(r"[^a-z]+", "_", name.lower()).strip("_")


def train(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Results of every method and seed."""
    corpus, runs = options.corpus, Path(options.out)
    own = [f"--model.head.feat_dim={WIDTH[corpus]}", "--model.head.augment_weight=1"]  # the experiment files may differ
    negatives = [f"--model.head.negatives={options.negatives}"] if options.negatives else []

    def whole(name: str, seed: int) -> Path:
        experiment, stage, overrides = WHOLE[name]
        chosen = [f"--stages.{stage}.epochs={options.epochs}"] if options.epochs else []
        config = [f"--config=experiments/{experiment}_{corpus}.yaml", f"--seed_everything={seed}"]
        if experiment == "lsfa":
            chosen += own
        if experiment != "joint":
            chosen += negatives
            chosen += [f"--stages.{stage}.average_from={options.average_from}"] if options.average_from else []
        return fit(runs, f"{slug(name)}-{corpus}-{seed}", *config, *chosen, *options.extra, *overrides)

    def end(name: str, seed: int) -> Path:
        base, overrides = ENDS[name]
        start = whole(base, seed) / "checkpoints" / "representation.ckpt"
        config = [f"--config=experiments/lsfa_{corpus}.yaml", f"--seed_everything={seed}"]
        begin = ["--from_stage=adjust", f"--ckpt={start}"]
        return fit(runs, f"{slug(name)}-{corpus}-{seed}", *config, *begin, *own, *negatives, *options.extra, *overrides)

    chosen = [name for name in ORDER if name in options.methods]
    for kind, made in ((WHOLE, whole), (ENDS, end)):
        tasks = [partial(made, name, seed) for seed in options.seeds for name in kind if name in chosen]
        run_parallel(tasks, options.jobs)
    return {n: [results((whole if n in WHOLE else end)(n, seed)) for seed in options.seeds] for n in chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=ORDER, choices=ORDER)
    parser.add_argument("--epochs", type=int, help="epochs of the first stage of each method")
    parser.add_argument("--average_from", type=int, help="first epoch of weight averaging, with label attention")
    parser.add_argument("--negatives", type=int, help="number of sampled labels, with label attention")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--out", default="runs/lsfa_table")
    options, options.extra = parser.parse_known_args()
    table = train(options)
    bins = {f"macroP@5/bin{i:02}": f"bin {i}" for i in range(1, BINS + 1)}
    for names in ({name: name for name in RANKING}, bins):
        rows = [[method, *(cell([r[name] for r in seeds]) for name in names)] for method, seeds in table.items()]
        print(markdown(["", *names.values()], rows), end="\n\n")
    print("seconds:", {method: [round(r["seconds"]) for r in seeds] for method, seeds in table.items()})


if __name__ == "__main__":
    main()
