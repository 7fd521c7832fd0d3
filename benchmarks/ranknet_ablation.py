"""The ablation of docs/results/ranknet-taug.md: the parts of RankNet, all on the same scores of one base model.

    python -m zoo fit --config experiments/bonsai_eurlex.yaml --data.limit_train=6000
    python benchmarks/ranknet_ablation.py --ckpt RUN/checkpoints/last.ckpt --out runs/ablation.pt

Out-of-fold, validation and test scores of a fitted linear engine are computed once and kept in `--out`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import yaml
from jobs import markdown

from datamodules import Targets
from datamodules.batch import LabelSpace
from heads import Ranking, TransitionContext
from heads.base import Head
from heads.tail.ranknet_training import RankNetTraining
from heads.tail.reranker import Rerank
from zoo.training.checkpoint import build_data, rebuild
from zoo.training.ranking_metrics import RankingMetrics

SHOWN = ("PSP@1", "PSP@3", "PSP@5", "P@1", "P@3", "P@5")
NONE = {"blocks": 0, "learned_exponent": None}
FULL = {"scale": "probabilities", "network": "full", "learned_exponent": None}
WIDE, LAST = {"margin": 0.5}, {"held_back": 0.0}  # c = 0.5, no early stopping
ALONE = {"blocks": 0}
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # training scores, settings of Rerank and of RankNet
    "base": ("", NONE, {}),
    "r f": ("", NONE | {"exponent": 1.0}, {}),
    "a ln r": ("oof", ALONE, LAST),
    "a ln r, c = 0": ("oof", ALONE, LAST | {"margin": 0.0}),
    "a ln r, c = 0.5": ("oof", ALONE, LAST | WIDE),
    "a ln r, c = 0.5, early stopping": ("oof", ALONE, WIDE),
    "a ln r, c = 0.5, lambda = 1": ("oof", ALONE, LAST | WIDE | {"margin_weight": 1.0}),
    "a ln r, c = 0.5, hard by the base": ("oof", ALONE, LAST | WIDE | {"hard_negatives": "base"}),
    "network on logits, early stopping": ("oof", {"scale": "logits", "learned_exponent": None}, {}),
    "network on logits, early stopping, lambda = 10, hard by the base": (
        "oof",
        {"scale": "logits", "learned_exponent": None},
        {"margin_weight": 10.0, "hard_negatives": "base"},
    ),
    "network on log probabilities, c = 0.5, early stopping": ("oof", {"learned_exponent": None}, WIDE),
    "a ln r + network, c = 0.5, early stopping": ("oof", {}, WIDE),
    "a ln r + network": ("oof", {}, LAST),
    "full form, early stopping": ("oof", FULL, {}),
    "full form": ("oof", FULL, LAST),
    "a ln r, trained on validation": ("val", ALONE, LAST),
    "a ln r + network, trained on validation": ("val", {}, {}),
    "full form, trained on validation": ("val", FULL, {}),
}


class Given(Head):
    """Stands in for the base model."""

    def loss(self, *_: Any) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def rank(self, *_: Any) -> Ranking:
        raise NotImplementedError


def scores(ckpt: str, folds: int, depth: int) -> dict[str, Any]:
    """Candidates and labels of all splits."""
    module = rebuild(Path(ckpt)).eval()
    data = build_data(yaml.safe_load(module.config_text or "")["data"])
    targets, engine = data.train_targets(), module.head
    found = {"oof": engine.out_of_fold(TransitionContext(words=data.train_words(), targets=targets), folds, depth)}
    truth = {"oof": targets}
    for split in ("val", "test"):
        parts = [(engine.rank(module(batch), depth), batch.rows) for batch in data.pass_dataloader(split)]
        order = torch.cat([rows for _, rows in parts]).argsort()
        found[split] = Ranking(*(torch.cat([getattr(r, n) for r, _ in parts])[order] for n in ("scores", "labels")))
        truth[split] = data.targets(split)
    kept = {name: (r.scores, r.labels.int(), truth[name].indptr, truth[name].indices) for name, r in found.items()}
    return {"space": vars(module.space), **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", help="checkpoint of a linear engine")
    parser.add_argument("--out", default="runs/ablation.pt")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--splits", nargs="+", default=["test"], choices=["val", "test"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not Path(options.out).exists():
        torch.save(scores(options.ckpt, options.folds, 100), options.out)
    kept = torch.load(options.out, weights_only=False)
    space = LabelSpace(**kept.pop("space"))
    splits = {name: (Ranking(part[0], part[1].long()), Targets(*part[2:])) for name, part in kept.items()}
    print(markdown(["form", "a", *SHOWN], []))
    for name in options.rows:
        source, settings, training = ROWS[name]
        head = Rerank(1, space, Given, ranknet=RankNetTraining(**training), **settings)
        if source:
            head.learn(*splits[source], TransitionContext(seed=options.seed))
        for split in options.splits:
            ranking, targets = splits[split]
            metrics = RankingMetrics(space)
            best = head.reranked(ranking, 5)
            metrics.update(best.scores, best.labels, targets)
            values = metrics.compute()
            power = head.power or (0.0 if head.net.exponent is None else float(head.net.exponent))
            row = [f"{name} ({split})", f"{power:.2f}", *(f"{100 * float(values[metric]):.2f}" for metric in SHOWN)]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
