"""The tables of docs/results/httn.md: Joint, imprinting, HTTN with and without its parts, EHTTN.

    python benchmarks/httn.py reuters --seeds 0 1 2 --jobs 2 --out runs/httn_table
    python benchmarks/httn.py eurlex --epochs 5 --jobs 2 --out runs/httn_table

H, H-F, H-F-A and EH are those of the paper's Figure 3; EHTTN's members are those of Figure 6. All variants with the
same seed share the trained head stage. Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import re
import statistics
from functools import partial
from pathlib import Path

from jobs import cell, fit, markdown, results, run_parallel

UNTUNED = ("--stages.finetune.epochs=0",)
ATTENTION = ("--model.head.attention=true",)
MEMBERS = ("--model.head.members=30", "--model.head.rank_members=true")
JOINT = "Joint, unit vectors"  # with HTTN's own classifier: differs from HTTN in nothing but the transfer
VARIANTS: dict[str, tuple[str, ...]] = {
    "Imprinting": ("--model.head.solver=identity", *UNTUNED),
    "HTTN": (),
    "HTTN, no fine-tuning (H-F-A)": UNTUNED,
    "HTTN, attention (H)": ATTENTION,
    "HTTN, attention, no fine-tuning (H-F)": (*ATTENTION, *UNTUNED),
    "HTTN, attention at 0.03": (*ATTENTION, "--model.head.temperature=0.03"),
    "EHTTN, attention (EH)": (*MEMBERS, *ATTENTION, "--model.head.objective=individual"),
    "EHTTN, one shot": (*MEMBERS, "--model.head.shots=1", *UNTUNED),
}
RANKING = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
LABELS = {
    "macroR@5/oneshot": "R, 1 document",
    "macroR@5/rare": "R, 1 to 3",
    "macroF@5/rare": "F, 1 to 3",
    "macroF@5/few": "F, up to 20",
    "macroF@5/medium": "F, 21 to 100",
    "macroF@5/many": "F, over 100",
}


def train(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Results of every variant and seed."""
    corpus, runs, table = options.corpus, Path(options.out), {}

    def base(method: str, stage: str, seed: int) -> Path:
        epochs = [f"--stages.{stage}.epochs={options.epochs}"] if options.epochs else []
        config = f"--config=experiments/{method}_{corpus}.yaml"
        return fit(runs, f"{method}-{corpus}-{seed}", config, f"--seed_everything={seed}", *epochs, *options.extra)

    def variant(name: str, seed: int) -> Path:
        head = base("httn", "head", seed) / "checkpoints" / "head.ckpt"
        slug = "from-" + re.sub("[^a-z0-9.]+", "_", name.lower()).strip("_")
        start = [f"--config=experiments/httn_{corpus}.yaml", "--from_stage=transfer", f"--ckpt={head}"]
        return fit(
            runs, f"{slug}-{corpus}-{seed}", *start, f"--seed_everything={seed}", *options.extra, *VARIANTS[name]
        )

    def unit_joint(seed: int) -> Path:
        epochs = [f"--stages.head.epochs={options.epochs}"] if options.epochs else []
        config = [f"--config=experiments/httn_{corpus}.yaml", "--model.head.tail_labels=0", *UNTUNED]
        return fit(runs, f"joint_unit-{corpus}-{seed}", *config, f"--seed_everything={seed}", *epochs, *options.extra)

    joint, httn = partial(base, "joint", "main"), partial(base, "httn", "head")
    run_parallel((partial(make, seed) for seed in options.seeds for make in (joint, unit_joint, httn)), options.jobs)
    table["Joint"] = [results(joint(seed)) for seed in options.seeds]
    table[JOINT] = [results(unit_joint(seed)) for seed in options.seeds]
    folders = run_parallel((partial(variant, name, seed) for name in VARIANTS for seed in options.seeds), options.jobs)
    for i, name in enumerate(VARIANTS):
        table[name] = [results(folder) for folder in folders[i * len(options.seeds) :][: len(options.seeds)]]
    return table


def member_rows(table: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Worst, mean and best member of each ensemble, and the ensemble itself (Figure 6)."""
    rows = []
    for method, seeds in table.items():
        members = [name.partition("/")[0] for name in seeds[0] if name.startswith("member") and name.endswith("/P@1")]
        for what, choose in {"min": min, "avg": statistics.mean, "max": max}.items() if members else ():
            of_seeds = [{name: choose([r[f"{m}/{name}"] for m in members]) for name in RANKING} for r in seeds]
            rows.append([f"{method}, {what}", *(cell([r[name] for r in of_seeds]) for name in RANKING)])
        if members:
            rows.append([method, *(cell([r[name] for r in seeds]) for name in RANKING)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="epochs of Joint and of the head stage")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--out", default="runs/httn_table")
    options, options.extra = parser.parse_known_args()
    table = train(options)
    for names in ({name: name for name in RANKING}, LABELS):
        rows = [[method, *(cell([r[name] for r in seeds]) for name in names)] for method, seeds in table.items()]
        print(markdown(["", *names.values()], rows), end="\n\n")
    print(markdown(["members of EHTTN", *RANKING], member_rows(table)), end="\n\n")
    print(
        "labels measured:",
        {name: table["Joint"][0][f"labels/{name}"] for name in ("oneshot", "rare", "few", "all")},
    )
    print("seconds:", {method: [round(r["seconds"]) for r in seeds] for method, seeds in table.items()})


if __name__ == "__main__":
    main()
