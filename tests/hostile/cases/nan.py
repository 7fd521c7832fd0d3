"""Divergence: a loss that overflows is never reported as a result and never replaces the last good checkpoint."""

from __future__ import annotations

from tests.hostile.case import EITHER, ERROR, TINY, Box, Case, Result, silent_unless
from tests.hostile.cases.faults import finite_checkpoints

STAGED = TINY.replace("  max_epochs: 1\n", "")
FEATURES = "40 5 3\n" + "".join(f"{i % 3} {i % 5}:3e38 {(i + 1) % 5}:-3e38\n" for i in range(40))
SGD = "--model.optimizer={class_path: SGD, init_args: {lr: 1e38}}"
# Further options of a run that must diverge.
DIVERGING: dict[str, tuple[str, ...]] = {
    "lr-1e30": ("--model.optimizer.lr=1e30",),
    "lr-1e30-sgd": ("--model.optimizer={class_path: SGD, init_args: {lr: 1e30}}",),
    "in-the-last-step": (SGD, "--trainer.limit_train_batches=1"),
    "without-validation": ("--model.optimizer.lr=1e30", "--trainer.limit_val_batches=0"),
    "validated-later": ("--model.optimizer.lr=1e30", "--trainer.check_val_every_n_epoch=5", "--trainer.max_epochs=2"),
    "saved-within-epoch": ("--model.optimizer.lr=1e30", "--last.every_n_train_steps=1"),
    "without-final-test": ("--model.optimizer.lr=1e30", "--final_test=false"),
    "fast-dev-run": ("--model.optimizer.lr=1e30", "--trainer.fast_dev_run=4"),
    "in-the-second-epoch": ("--model.lr_scheduler={class_path: ExponentialLR, init_args: {gamma: 1e36}}",
                            "--trainer.max_epochs=4"),
    "averaged": ("--stages=[{name: a, epochs: 1, lr: 1e30, average_from: 0, average_every: 1}]",
                 "--trainer.max_epochs=null"),
    "second-stage": ("--stages=[{name: a, epochs: 1}, {name: b, epochs: 1, lr: 1e30}]", "--trainer.max_epochs=null"),
    "best-restored": ("--stages=[{name: a, epochs: 3, lr: 1e30, restore_best: true, patience: 1}]",
                      "--trainer.max_epochs=null"),
    "monitored-loss": ("--model.optimizer.lr=1e30", "--best.monitor=train/main/loss", "--best.mode=min"),
    "tree": ("--model.head={class_path: PLT, init_args: {hidden: [8], tree: {clusters: 4}, beam: 3}}",
             "--stages=[{name: main, epochs: 1, lr: 1e30, on_enter: [build_tree]}]", "--trainer.max_epochs=null"),
    "transfer": ("--model.head={class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, "
                 "shots: 2}}", "--stages=[{name: head, epochs: 1, lr: 1e30}, {name: transfer, on_enter: [transfer]}]",
                 "--trainer.max_epochs=null"),
}  # fmt: skip
TASTE = {"fast-dev-run", "half-precision", "clipped", "weight-decay"}


def nothing_reported(box: Box, result: Result) -> None:
    """Checkpoints are finite, and only a run that did not diverge has metrics."""
    finite_checkpoints(box.folder / "runs")
    if result.code != 0:
        silent_unless(not list(box.folder.glob("runs/*/*/metrics.json")), "metrics of a diverged run are a result")
    for file in box.folder.glob("runs/*/*/metrics.json"):
        silent_unless("NaN" not in file.read_text(), "metrics.json has NaN")


def cases(seed: int) -> list[Case]:
    found = []
    for id, options in DIVERGING.items():
        expect = EITHER if id in TASTE else ERROR
        argv = ["fit", "--config=tiny.yaml", *options]
        found.append(Case(id, argv, expect, check=nothing_reported))
    argv = ["fit", "--config=tiny.yaml", "--model.backbone=Bow", "--data=SparseFiles", "--data.train=own/train.txt"]
    found.append(Case("features-overflow", argv, EITHER, {"own/train.txt": FEATURES}, check=nothing_reported))
    return found
