"""The tables of docs/results/ranknet-taug.md: linear models with and without RankNet, the propensity form and Taug.

    python benchmarks/tail_labels.py reuters --bases OneVsRestSvm Bonsai
    python benchmarks/tail_labels.py eurlex --bases Bonsai

For each base model, one run fits it, trains RankNet on out-of-fold scores and chooses a propensity exponent; its parts
are the rows of the base model, of RankNet and of both. A second run chooses an exponent for the fitted base model only.
For each kind of augmentation, a run of Taug trains RankNet on scores of validation documents. Finished runs are
skipped. Other options are passed to `zoo fit`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml
from jobs import fit, markdown, results

CORPORA = ("eurlex", "reuters", "bibtex", "delicious")
FRACTION = 0.1  # share of the labels that are head labels
WAYS = {  # settings of TailAugment
    "decoupled only": {"copies": 0},
    "Taug-d": {"keep": 0.8, "swap": None},
    "Taug-s": {"keep": None, "swap": 0.1},
    "Taug-ds": {"keep": 0.8, "swap": 0.1},
    "Taug-ds, all documents": {
        "keep": 0.8,
        "swap": 0.1,
    },  # also those without tail labels
}
METRICS = [f"{name}@{k}" for name in ("PSP", "PSnDCG", "P", "nDCG") for k in (1, 3, 5)]
SHOWN = [name for name in METRICS if name not in ("PSnDCG@1", "nDCG@1")]  # equal to PSP@1 and P@1


def experiment(
    corpus: str, head: dict[str, Any], stages: list[tuple[str, list[str]]], **trainer: Any
) -> dict[str, Any]:
    """Configuration that fits `head` in stages without epochs."""
    parts = Path("experiments/parts").resolve()
    text = {"data.vectors": None, "data.tokenizer": "word", "data.max_length": 600}
    return {
        "data": str(parts / f"data_{corpus}.yaml"),
        **(text if corpus in ("eurlex", "reuters") else {}),
        "data.eval_batch_size": 512,
        "trainer": str(parts / "trainer.yaml"),
        **{f"trainer.{name}": value for name, value in trainer.items()},
        "model": {"backbone": "Words", "head": head},
        "stages": [{"name": name, "on_enter": methods} for name, methods in stages],
    }


def rerank(inner: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"class_path": "Rerank", "init_args": {"inner": inner, **settings}}


def run(options: argparse.Namespace, name: str, config: dict[str, Any], *more: str) -> tuple[Path, dict[str, float]]:
    """Train a configuration, and return the folder and the results of the run."""
    runs = Path(options.out)
    runs.mkdir(parents=True, exist_ok=True)
    file = runs / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    folder = fit(runs, name, f"--config={file}", f"--seed_everything={options.seed}", *options.rest, *more)
    return folder, results(folder)


def component(values: dict[str, float], name: str) -> dict[str, float]:
    """Results of a component of the head."""
    return {metric: values[f"{name}/{metric}"] for metric in METRICS}


def base_rows(options: argparse.Namespace, base: str) -> dict[str, dict[str, float]]:
    """Rows of a base model, with and without RankNet and propensity exponents."""
    corpus, name = options.corpus, f"{base}-{options.corpus}"
    head = rerank({"class_path": base}, folds=options.folds)
    stages = [("fit", ["inner.fit"]), ("ranknet", ["train_ranknet"]), ("exponent", ["choose_exponent"])]
    folder, both = run(options, name, experiment(corpus, head, stages))
    start = [f"--ckpt={folder / 'checkpoints' / 'fit.ckpt'}", "--from_stage=exponent"]
    _, propensity = run(options, f"{name}-propensity", experiment(corpus, head, stages), *start)
    return {
        base: component(both, "inner"),
        "+ RankNet": component(both, "network") if "network/P@1" in both else both,
        "+ propensity": propensity,
        "+ RankNet, propensity": both,
    }


def taug_rows(options: argparse.Namespace, base: str, way: str) -> dict[str, dict[str, float]]:
    """Rows of separate models for head and tail labels, with RankNet and a propensity exponent."""
    decoupled = {
        "class_path": "Decoupled",
        "init_args": {
            "fraction": FRACTION,
            "all_documents": "all documents" in way,
            "head": {"class_path": base},
            "tail": {"class_path": base},
        },
    }
    stages = [
        ("head", ["inner.head.fit"]),
        ("tail", ["inner.tail.fit"]),
        ("calibrate", ["inner.calibrate"]),
        ("ranknet", ["train_ranknet"]),
        ("exponent", ["choose_exponent"]),
    ]
    augment = {"class_path": "TailAugment", "init_args": {"stage": "tail", "fraction": FRACTION, **WAYS[way]}}
    config = experiment(options.corpus, rerank(decoupled, scores="validation"), stages, callbacks=[augment])
    _, values = run(options, f"{base}-{options.corpus}-{way.replace(',', '').replace(' ', '-')}", config)
    rows = {f"{way}": component(values, "inner")}
    rows[f"{way} + RankNet"] = component(values, "network") if "network/P@1" in values else values
    return rows | {f"{way} + RankNet, propensity": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--bases", nargs="+", default=["OneVsRestSvm", "Bonsai"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/tail_labels")
    options, options.rest = parser.parse_known_args()
    rows: list[list[str]] = []
    for base in options.bases:
        found = base_rows(options, base)
        for way in options.ways:
            found |= taug_rows(options, base, way)
        rows += [[name, *(f"{values[metric]:.2f}" for metric in SHOWN)] for name, values in found.items()]
    print(markdown([options.corpus, *SHOWN], rows))


if __name__ == "__main__":
    main()
