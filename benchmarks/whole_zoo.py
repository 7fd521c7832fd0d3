"""The tables of docs/results/index.md: every method of the zoo on Reuters and on EURLEX57K.

    python benchmarks/whole_zoo.py --jobs 2 --encoder FOLDER

Neural models are trained on all of Reuters and on a part of EURLEX57K, for fewer epochs than in their experiment files.
Linear models are trained on this part and on the whole. Finished runs are skipped. `--encoder` is the folder or name of
a small Hugging Face transformer; without it, methods that need one are left out. `--only` takes names of experiments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

from jobs import fit, run_parallel

PART = ("--data.limit_train=6000", "--data.limit_val=1000")
SHORT = (*PART, "--data.max_length=100", "--data.batch_size=40")  # for neural models on EURLEX57K
NARROW = (*SHORT, "--model.backbone.hidden=100")
TINY = ("--data.max_length=48", "--data.batch_size=16")  # for transformers
CLIPPED = "--trainer.gradient_clip_val=1"  # as when the tables were made
AFTER_HTTN = ("ehttn_reuters", "imprinting_reuters")
Settings = dict[str, tuple[str, ...]]


def stages(**epochs: int) -> tuple[str, ...]:
    return tuple(f"--stages.{name}.epochs={number}" for name, number in epochs.items())


def averaged(start: int, *names: str) -> tuple[str, ...]:
    """Options that average the weights of stages from epoch `start` on."""
    return tuple(f"--stages.{name}.average_from={start}" for name in names)


TREE = (*stages(clusters=3, labels=5), *averaged(2, "clusters"), *averaged(3, "labels"))
REUTERS: Settings = {
    "lsfa_reuters": (*stages(representation=5), *averaged(3, "representation")),
    "joint_reuters": stages(main=8),
    "httn_reuters": stages(head=8),
    "ehttn_reuters": (),  # these two start from the head stage of httn_reuters
    "imprinting_reuters": (),
    "attentionxml_reuters": (*stages(main=5), *averaged(3, "main")),
    "lightattention_reuters": (*stages(main=5), *averaged(3, "main")),
    "attentionxml_tree_reuters": TREE,
    "lsan_reuters": stages(main=5),
    "bbn_reuters": (*stages(main=6), "--model.head.epochs=6"),
    "taug_bilstm_reuters": stages(head=4, tail=4),
    "wide_reuters": stages(main=6),
    "svm_reuters": (),
    "parabel_reuters": (),
    "bonsai_reuters": (),
    "taug_bonsai_reuters": (),
    "ranknet_svm_reuters": (),
}
EURLEX_PART: Settings = {
    "lsfa_eurlex": (*NARROW, *stages(representation=8)),
    "joint_eurlex": (*NARROW, *stages(main=8)),
    "svm_eurlex": PART,
    "parabel_eurlex": PART,
    "bonsai_eurlex": PART,
    "ranknet_bonsai_eurlex": PART,
    "taug_bonsai_eurlex": PART,
    "ranknet_taug_eurlex": PART,
    "httn_eurlex": (*NARROW, *stages(head=8)),
    "xmlcnn_eurlex": (*SHORT, *stages(main=8)),
    "bow_eurlex": (*PART, *stages(main=8), "--model.lr_scheduler.T_max=8"),
    "ltmcp_eurlex": (*NARROW, *stages(head=8)),
    "attentionxml_eurlex": (*NARROW, *stages(main=8)),
    "lightattention_eurlex": (*NARROW, *stages(main=8)),
    "attentionxml_tree_eurlex": (*SHORT, "--model.backbone.encoder.hidden=100", *stages(clusters=4, labels=8)),
    "ranknet_lsfa_eurlex": (*NARROW, *stages(representation=8)),
}
EURLEX: Settings = {"parabel_eurlex": (), "bonsai_eurlex": (), "svm_eurlex": ()}
WITH_ENCODER: dict[str, Settings] = {
    "whole": {"mexml_reuters": (*TINY, CLIPPED, *stages(experts=1, diverse=1))},
    "part": {
        "mexml_eurlex": (*PART, *TINY, CLIPPED, *stages(experts=1, diverse=2)),
        "bert_eurlex": (*PART, *TINY, *stages(main=3)),
        "lightxml_eurlex": (*PART, *TINY, *stages(main=3), *averaged(2, "main")),
        "aplc_eurlex": (*PART, *TINY, *stages(main=3), "--model.head.hidden=384"),
    },
}
COLUMNS = "P@1,P@3,P@5,nDCG@5,PSP@1,PSP@3,PSP@5,macroF@5/few,macroF@5/all,seconds"


def train(runs: Path, experiment: str, options: tuple[str, ...]) -> None:
    """Train an experiment; report a failure without stopping the others."""
    if experiment in AFTER_HTTN:
        base = fit(runs, "httn_reuters", "--config", "experiments/httn_reuters.yaml", *REUTERS["httn_reuters"])
        options = (*options, "--from_stage=transfer", f"--ckpt={base / 'checkpoints' / 'head.ckpt'}")
    try:
        fit(runs, experiment, "--config", f"experiments/{experiment}.yaml", "--seed_everything=0", *options)
    except subprocess.CalledProcessError:
        print(f"{experiment} failed: see {runs / experiment}.log", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--encoder", help="folder or name of a Hugging Face transformer")
    parser.add_argument("--only", nargs="+", help="names of experiments")
    parser.add_argument("--out", type=Path, default=Path("runs/whole_zoo"))
    options = parser.parse_args()
    plan = [("whole", REUTERS), ("whole", EURLEX), ("part", EURLEX_PART)]
    if options.encoder:
        own = f"--model.backbone.name={options.encoder}"
        for place, runs in WITH_ENCODER.items():
            plan.append((place, {name: (*settings, own) for name, settings in runs.items()}))
    plan.append(("whole", {"propensity_svm_eurlex": ()}))  # last, because it takes longest
    tasks = [
        partial(train, options.out / place, name, settings)
        for place, runs in plan
        for name, settings in runs.items()
        if not options.only or name in options.only
    ]
    run_parallel(tasks, options.jobs)
    command = [sys.executable, "-m", "zoo", "compare", str(options.out), "--columns", COLUMNS, "--format", "markdown"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
