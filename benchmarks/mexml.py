"""The tables of docs/results/mexml.md: one, two and three experts, how they are trained, and the plain transformer.

    python benchmarks/mexml.py reuters --seeds 0 1 2 --methods "3 experts" "1 expert (D)" --jobs 2 \\
        --model.backbone.name=FOLDER

Other options are passed to `zoo fit`. Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from jobs import cell, fit, markdown, results, run_parallel

A1, A3, D = "{kind: label_attention, layer: 1}", "{kind: label_attention, layer: 3}", "{kind: cls, layer: -1}"


def experts(*chosen: str) -> str:
    return f"--model.head.experts=[{', '.join(chosen)}]"


def only_vectors(stage: str) -> str:
    """Learning rates of a head without label attention, which has no queries."""
    return f"--stages.{stage}.groups={{'head.*': {{lr: 2.0e-3}}}}"


ALL = experts(A1, A3, D)
NO_DIVERSITY, TOGETHER = "--model.head.diversity=0", "--model.head.objective=collaborative"
METHODS: dict[str, tuple[str, ...]] = {
    "3 experts": (ALL,),
    "3 experts, no diversity": (ALL, NO_DIVERSITY),
    "3 experts, collaborative": (ALL, TOGETHER),
    "3 experts, collaborative, no diversity": (ALL, TOGETHER, NO_DIVERSITY),
    "2 experts (A1, D)": (experts(A1, D),),
    "2 experts (A1, D), no diversity": (experts(A1, D), NO_DIVERSITY),
    "1 expert (D)": (experts(D), only_vectors("experts"), only_vectors("diverse")),
    "1 expert (A1)": (experts(A1),),
}
RANKING = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
CLASSES = ("few", "medium", "many", "all")


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def train(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Results of every method and seed."""

    def run(name: str, seed: int) -> Path:
        config = [f"--config=experiments/mexml_{options.corpus}.yaml", f"--seed_everything={seed}"]
        return fit(Path(options.out), f"{slug(name)}-{options.corpus}-{seed}", *config, *options.extra, *METHODS[name])

    run_parallel([partial(run, name, seed) for seed in options.seeds for name in options.methods], options.jobs)
    return {name: [results(run(name, seed)) for seed in options.seeds] for name in options.methods}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--out", default="runs/mexml_table")
    options, options.extra = parser.parse_known_args()
    table = train(options)
    classes = {f"macro{kind}@5/{group}": f"{kind}@5 {group}" for group in CLASSES for kind in "PRF"}
    for names in ({name: name for name in RANKING}, classes):
        rows = [[method, *(cell([r[name] for r in seeds]) for name in names)] for method, seeds in table.items()]
        print(markdown(["", *names.values()], rows), end="\n\n")
    for method, seeds in table.items():
        parts = sorted({name.rpartition("/")[0] for name in seeds[0] if name.endswith("/P@1")})
        own = {part: [cell([r[f"{part}/{name}"] for r in seeds]) for name in ("P@1", "P@5", "PSP@5")] for part in parts}
        print(f"{method}: {[round(r['seconds']) for r in seeds]} seconds; P@1, P@5, PSP@5 of its experts: {own}")


if __name__ == "__main__":
    main()
