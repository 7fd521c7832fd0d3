"""Vary a setting of the later stages, with one trained first stage per seed (HTTN and LSFA, Figure 5).

    python benchmarks/shared_stage.py httn_reuters --stage transfer --after head \\
        --vary model.head.draws=5,10,20,30,40,50,60 --columns microF1@0.5 --seeds 0 1 2
    python benchmarks/shared_stage.py lsfa_eurlex --stage bank --after representation \\
        --vary model.head.samples=0,1,2,5,10
    python benchmarks/shared_stage.py lsfa_eurlex --stage bank --after representation \\
        --vary model.head.head_count=10,20,50,100,200

Further options go to every run. Finished runs are skipped.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from jobs import cell, fit, markdown, results, run_parallel

from zoo.core.metrics import HEADLINE_METRICS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="name of a file in experiments/")
    parser.add_argument("--stage", required=True, help="stage that the runs start with")
    parser.add_argument("--after", required=True, help="stage before it, whose checkpoint they start from")
    parser.add_argument("--vary", required=True, metavar="KEY=VALUE,...", help="setting of the later stages")
    parser.add_argument("--columns", nargs="+", default=list(HEADLINE_METRICS), help="metrics in the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--out", default="runs/shared_stage")
    options, extra = parser.parse_known_args()
    runs, (key, _, values) = Path(options.out), options.vary.partition("=")
    config = [f"--config=experiments/{options.experiment}.yaml", *extra]

    def first(seed: int) -> Path:
        return fit(runs, f"{options.experiment}-{seed}", *config, f"--seed_everything={seed}")

    def variant(value: str, seed: int) -> Path:
        start = first(seed) / "checkpoints" / f"{options.after}.ckpt"
        name = f"{options.experiment}-{key.rpartition('.')[2]}-{value}-{seed}"
        begin = [f"--from_stage={options.stage}", f"--ckpt={start}", f"--{key}={value}"]
        return fit(runs, name, *config, f"--seed_everything={seed}", *begin)

    run_parallel([partial(first, seed) for seed in options.seeds], options.jobs)
    rows = []
    for value in values.split(","):
        found = run_parallel([partial(variant, value, seed) for seed in options.seeds], options.jobs)
        metrics = [results(folder) for folder in found]
        rows.append([value, *(cell([one[name] for one in metrics]) for name in options.columns)])
    print(markdown([key.rpartition(".")[2], *options.columns], rows))


if __name__ == "__main__":
    main()
