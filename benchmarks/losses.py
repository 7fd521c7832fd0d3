"""Table of docs/results/losses.md: every loss with a linear head and with label attention.

    python benchmarks/losses.py --out runs/losses

Trains on Reuters-21578 and on a part of EURLEX57K, one run at a time; finished runs are skipped. Losses have the
defaults of their papers. Optimizer and learning rate are those of the experiments, which were chosen for BCE.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from jobs import fit

LOSSES = (
    "BCE",
    "Focal",
    "ClassBalanced",
    "Asymmetric",
    "DistributionBalanced",
    "PropensityBCE",
    "SquaredHinge",
)
SHORT = ("--data.max_length=100",)
PART = (*SHORT, "--data.limit_train=3000", "--data.limit_val=500", "--data.batch_size=40")
NARROW = ("--model.backbone.hidden=100",)
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "joint_reuters": (*SHORT, "--stages.main.epochs=5"),
    "joint_eurlex": (*PART, *NARROW, "--stages.main.epochs=8"),
    "attentionxml_reuters": (
        "--data.limit_train=3000",
        "--data.max_length=60",
        "--stages.main.epochs=4",
        "--stages.main.average_from=2",
    ),
    "attentionxml_eurlex": (*PART, *NARROW, "--stages.main.epochs=5", "--stages.main.average_from=3"),
}
COLUMNS = "P@1,P@5,nDCG@5,PSP@1,PSP@5,macroF@5/few,macroF@5/medium,macroF@5/many"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--losses", nargs="+", default=LOSSES, metavar="LOSS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/losses"))
    options = parser.parse_args()
    for experiment in options.only:
        for loss in options.losses:
            name = f"{experiment}_{loss}_{options.seed}"
            own = (f"--model.head.loss={loss}", f"--seed_everything={options.seed}", *EXPERIMENTS[experiment])
            try:
                fit(options.out, name, f"--config=experiments/{experiment}.yaml", *own)
            except subprocess.CalledProcessError:
                print(f"{name} failed: see {options.out / name}.log", file=sys.stderr, flush=True)
    by = "data,head,model.head.loss"
    table = ["compare", str(options.out), "--by", by, "--columns", COLUMNS, "--published", "false"]
    subprocess.run([sys.executable, "-m", "zoo", *table, "--format", "markdown"], check=True)


if __name__ == "__main__":
    main()
