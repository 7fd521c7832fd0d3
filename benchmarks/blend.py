"""The tables of docs/results/blend.md: what each group of features of Blend is worth, on the same candidates.

    python -m zoo fit --config experiments/bonsai_eurlex.yaml --data.limit_train=12000 --model.head.lead=80
    python benchmarks/blend.py --ckpt RUN/checkpoints/last.ckpt --label_texts eurlex57k/labels.json.gz
    python benchmarks/blend.py --split val --trees '{lr: 0.1}' --rows all

Candidates and features of validation and test documents are computed once and kept in `--out`. Trees are fitted to the
validation documents and measured on the test documents, or with `--split val` by three folds of the former.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from jobs import markdown
from scipy.sparse import csr_array
from torch import Tensor

from datamodules import Batch, Targets, TextDataModule
from datamodules.batch import LabelSpace
from heads import Blend, TransitionContext
from heads.base import Ranking, probabilities, top_candidates
from heads.blend.boosting import BoostedTrees, Boosting
from heads.blend.candidate_union import union
from heads.blend.perceptron import Network, Perceptron
from heads.tail.propensity import by_propensity
from heads.tail.rankings import relevant
from zoo.training.checkpoint import build_data, rebuild
from zoo.training.ranking_metrics import RankingMetrics

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
STEPS = ("Scores", "Counts", "Neighbours", "LabelWords", "Cooccurrence", "Clusters", "Hierarchy")
FOLDS = 3
BINS = 15  # of the calibration error


class Documents(TransitionContext):
    """Words and labels of the training documents, and label texts."""

    def __init__(self, data: TextDataModule) -> None:
        super().__init__(targets=data.train_targets())
        self.data = data

    def train_words(self, lead: int = 0) -> csr_array:
        return self.data.train_words(lead)

    def label_features(self) -> Iterator[tuple[Any, Batch]]:
        return ((None, batch) for batch in self.data.label_batches())


def pairs(ckpts: list[str], label_texts: str | None) -> dict[str, Any]:
    """Candidates (docs, K), features of all pairs (docs, K, features) and labels of both splits."""
    module, *others = [rebuild(Path(ckpt)).eval() for ckpt in ckpts]
    config = yaml.safe_load(module.config_text or "")["data"]
    config["init_args"]["label_texts"] = label_texts
    data = build_data(config)
    names = {f"{type(one.head).__name__.lower()}{number}": one.head for number, one in enumerate((module, *others))}
    head = Blend(1, data.space, {name: lambda *_, one=one: one for name, one in names.items()})
    context = Documents(data)
    head.features.learn(context, torch.arange(len(context.train_targets())))
    width = head.candidates * len(head.inner_heads)
    kept: dict[str, Any] = {"space": vars(module.space), "groups": {}}
    for group in head.features.groups:
        kept["groups"][type(group).__name__] = [head.features.names.index(name) for name in group.names]
    kept["names"] = head.features.names
    for split in ("val", "test"):
        targets = data.targets(split)
        labels = torch.full((len(targets), width), -1)
        means = torch.full(labels.shape, -torch.inf)
        inputs = torch.zeros(*labels.shape, len(head.features.names))
        for batch in data.pass_dataloader(split):
            found = union([member.rank(module(batch), head.candidates) for member in head.inner_heads.values()], batch)
            size = found.labels.shape[1]
            labels[batch.rows, :size], means[batch.rows, :size] = found.labels, found.mean.float()
            values = torch.zeros(*found.labels.shape, inputs.shape[-1])
            values[found.known] = head.features(found)
            inputs[batch.rows, :size] = values
        kept[split] = (labels.int(), means, inputs, targets.indptr, targets.indices)
    return kept


class Split:
    """Documents with their candidates."""

    def __init__(self, labels: Tensor, means: Tensor, inputs: Tensor, indptr: Tensor, indices: Tensor) -> None:
        self.labels, self.means, self.inputs, self.targets = labels.long(), means, inputs, Targets(indptr, indices)
        self.hits = relevant(self.labels, self.targets)

    def take(self, rows: Tensor) -> Split:
        targets = self.targets.take(rows)
        return Split(self.labels[rows], self.means[rows], self.inputs[rows], targets.indptr, targets.indices)

    @property
    def known(self) -> Tensor:
        return self.labels >= 0


@torch.no_grad()
def logits(train: Split, test: Split, columns: list[int], settings: Boosting | Network) -> Tensor:
    kind = Perceptron if isinstance(settings, Network) else BoostedTrees
    trees = kind(len(columns), settings)
    known = train.known
    trees.learn(train.inputs[known][:, columns].numpy(), train.hits[known].numpy())
    found = torch.full(test.labels.shape, -torch.inf)
    found[test.known] = trees(test.inputs[test.known][:, columns]).float()
    return found


def calibration_error(split: Split, scores: Tensor) -> float:
    """Mean distance between confidence and accuracy of the candidates, in bins of equal width (ECE)."""
    p, hits = scores[split.known].sigmoid().double(), split.hits[split.known].double()
    place = (p * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, p - hits)
    return float(gaps.abs().sum() / len(p))


def shown(name: str, space: LabelSpace, split: Split, scores: Tensor, power: float, seconds: float) -> None:
    best = top_candidates(scores, split.labels, split.labels.shape[1])
    ranking = Ranking(probabilities(best.scores) * (best.labels >= 0), best.labels)
    if power:
        ranking = by_propensity(ranking, space.inverse_propensity()[: space.num_labels].float(), power)
    metrics = RankingMetrics(space)
    metrics.update(ranking.scores[:, :5], ranking.labels[:, :5], split.targets)
    values = metrics.compute()
    row = [name, *(f"{100 * float(values[metric]):.2f}" for metric in SHOWN)]
    print(f"| {' | '.join([*row, f'{100 * calibration_error(split, scores):.2f}', f'{seconds:.0f}'])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", nargs="+", help="checkpoints of linear engines of one corpus")
    parser.add_argument("--label_texts", help="file with label descriptions")
    parser.add_argument("--out", default="runs/blend.pt")
    parser.add_argument("--split", default="test", choices=["val", "test"])
    parser.add_argument("--rows", default="steps", choices=["steps", "without", "all"])
    parser.add_argument("--trees", default="{}", help="settings of `Boosting` or `Network`, as YAML")
    parser.add_argument("--exponents", nargs="*", type=float, default=[], help="of the model with all features")
    options = parser.parse_args()
    if not Path(options.out).exists():
        torch.save(pairs(options.ckpt, options.label_texts), options.out)
    kept = torch.load(options.out)
    space, groups = LabelSpace(**kept["space"]), kept["groups"]
    val, test = Split(*kept["val"]), Split(*kept["test"])
    measured = {"val": val, "test": test}[options.split]
    given = yaml.safe_load(options.trees)
    settings = Network(**given) if "hidden" in given else Boosting(**given)
    steps = [name for name in STEPS if name in groups]
    rows = {"all": steps}
    if options.rows == "steps":
        rows = {"+ " * bool(i) + name: steps[: i + 1] for i, name in enumerate(steps)}
    elif options.rows == "without":
        rows |= {f"without {name}": [other for other in steps if other != name] for name in steps}
    print(markdown(["features", *SHOWN, "ECE", "seconds"], []))
    shown("base", space, measured, measured.means, 0.0, 0.0)
    for name, chosen in rows.items():
        start, columns = time.perf_counter(), sorted(column for group in chosen for column in groups[group])
        if options.split == "test":
            scores = logits(val, test, columns, settings)
        else:
            scores, fold_of = torch.empty_like(val.means), torch.arange(len(val.targets)) % FOLDS
            for fold in range(FOLDS):
                seen, unseen = (fold_of != fold).nonzero().flatten(), (fold_of == fold).nonzero().flatten()
                scores[unseen] = logits(val.take(seen), val.take(unseen), columns, settings)
        shown(name, space, measured, scores, 0.0, time.perf_counter() - start)
    for power in options.exponents:
        shown(f"{name}, exponent {power:g}", space, measured, scores, power, 0.0)


if __name__ == "__main__":
    main()
