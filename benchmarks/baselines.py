"""The tables of docs/results/baselines.md: methods with label graphs and label embeddings beside their relatives.

    python benchmarks/baselines.py reuters --seeds 0 1 2
    python benchmarks/baselines.py eurlex
    python benchmarks/baselines.py reuters --tune

3,000 documents of Reuters-21578 and 2,000 of EURLEX57K; all rows of a corpus have the same documents, tokens, encoder
width, epochs and learning rate. Finished runs are skipped; `--only` takes rows. `--tune` prints validation results of
the rows of the first seed, and of other settings. Options of `zoo fit` are passed on, such as `--data.limit_train`;
give them an `--out` of their own. A row is an entry of ROWS.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

from jobs import cell, fit, markdown, results


class Row(NamedTuple):
    """An experiment, without its corpus, and options beyond those of all rows."""

    table: str
    experiment: str
    options: tuple[str, ...] = ()
    sampled: bool = False  # trains on sampled labels on EURLEX57K
    averaged: bool = False


INTERACTION, EMBEDDINGS = "Label graphs and interaction", "Label embeddings"
ROWS = {
    "AttentionXML": Row(INTERACTION, "attentionxml", sampled=True, averaged=True),
    "LSAN": Row(INTERACTION, "lsan", sampled=True),
    "LDGN": Row(INTERACTION, "ldgn", sampled=True),
    "EXAM": Row(INTERACTION, "exam", sampled=True),
    "Joint": Row(EMBEDDINGS, "joint"),
    "Joint, GLaS": Row(EMBEDDINGS, "glas_joint"),
    "AttentionXML, GLaS": Row(EMBEDDINGS, "glas_attentionxml", sampled=True, averaged=True),
    "DXML": Row(EMBEDDINGS, "dxml"),
}
TUNED = {
    "LSAN, lr 1e-3": ("LSAN", "--model.optimizer.lr=1e-3"),
    "LDGN, lr 1e-3": ("LDGN", "--model.optimizer.lr=1e-3"),
    "EXAM, lr 1e-3": ("EXAM", "--model.optimizer.lr=1e-3"),
    "Joint, GLaS, weight 10": ("Joint, GLaS", "--model.head.weight=10"),
    "Joint, GLaS, weight 100": ("Joint, GLaS", "--model.head.weight=100"),
}
TOKENS, EPOCHS, NEGATIVES = 60, {"reuters": 4, "eurlex": 5}, 300
DOCUMENTS = {
    "reuters": ("--data.limit_train=3000",),
    "eurlex": ("--data.limit_train=2000", "--data.limit_val=200", "--data.batch_size=40"),
}
RANKING = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
LABELS = {
    "macroF@5/few": "F, up to 20",
    "macroF@5/medium": "F, 21 to 100",
    "macroF@5/many": "F, over 100",
    "macroF@5/all": "F, all",
    "seconds": "seconds",
}


def run(out: Path, corpus: str, name: str, seed: int, slug: str, *further: str) -> Path:
    row, epochs = ROWS[name], EPOCHS[corpus]
    options = [f"--data.max_length={TOKENS}", "--model.backbone.hidden=100", "--model.optimizer.lr=3e-3"]
    options.append(f"--stages.main.epochs={epochs}")
    if row.averaged:
        options.append(f"--stages.main.average_from={epochs // 2}")
    if row.sampled and corpus == "eurlex":
        options.append(f"--model.head{'.inner' if 'glas' in row.experiment else ''}.negatives={NEGATIVES}")
    if name == "EXAM":
        options.append(f"--model.head.length={TOKENS}")
    config = [f"--config=experiments/{row.experiment}_{corpus}.yaml", f"--seed_everything={seed}"]
    return fit(out, f"{slug}-{corpus}-{seed}", *config, *DOCUMENTS[corpus], *options, *row.options, *further)


def slug_of(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.lower())


def validation(folder: Path) -> dict[str, float]:
    """Validation metrics of the last epoch, in %."""
    with (folder / "metrics.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["val/P@1"]][-1]
    return {name: 100 * float(last[f"val/{name}"]) for name in RANKING}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", help="names of rows")
    parser.add_argument("--tune", action="store_true", help="print validation results, also of other settings")
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    given, further = parser.parse_known_args()
    if given.tune:
        variants = {name: (name, ()) for name in ROWS} | {
            name: (row, (option,)) for name, (row, option) in TUNED.items()
        }
        tried = {
            name: validation(run(given.out, given.corpus, row, given.seeds[0], slug_of(name), *option, *further))
            for name, (row, option) in variants.items()
            if name in (given.only or variants)
        }
        names = list(next(iter(tried.values())))
        print(markdown(["", *names], [[row, *(cell([values[n]]) for n in names)] for row, values in tried.items()]))
        return
    found = {
        name: [results(run(given.out, given.corpus, name, seed, slug_of(name), *further)) for seed in given.seeds]
        for name in ROWS
        if name in (given.only or ROWS)
    }
    for table in (INTERACTION, EMBEDDINGS):
        print(f"### {table}\n")
        for names in ({name: name for name in RANKING}, LABELS):
            lines = [
                [name, *(cell([r[metric] for r in seeds]) for metric in names)]
                for name, seeds in found.items()
                if ROWS[name].table == table
            ]
            print(markdown(["", *names.values()], lines), end="\n\n")


if __name__ == "__main__":
    main()
