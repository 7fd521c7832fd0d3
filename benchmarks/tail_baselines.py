"""The tables of docs/results/tail-baselines.md: ProXML, OLTR and XR-Transformer's recipe beside their relatives.

    python benchmarks/tail_baselines.py reuters --seeds 0 1 2
    python benchmarks/tail_baselines.py eurlex
    python benchmarks/tail_baselines.py reuters --seeds 0 1 2 --epochs 3 --encoder FOLDER
    python benchmarks/tail_baselines.py eurlex --epochs 3 --encoder FOLDER

Reuters whole, 12,000 documents of EURLEX57K. With `--encoder`, the folder or name of a small Hugging Face transformer,
the rows with a transformer, and the SVM, on 2,000 documents. Networks read 100 tokens, or 32 with a transformer, and
are trained for few epochs, as many in all rows. Finished runs are skipped; `--only` takes names of rows, and
further options are those of `zoo fit`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from jobs import cell, fit, markdown, results


class Row(NamedTuple):
    """A run; rows that differ in `prefix` only are rankings of the same run."""

    experiment: str  # without the corpus
    options: tuple[str, ...] = ()
    prefix: str = ""
    after: str | None = None  # row whose head stage it starts from

    @property
    def run(self) -> tuple[str, tuple[str, ...]]:
        return self.experiment, self.options


RANKING = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
LABELS = {
    "macroR@5/rare": "R, 1 to 3",
    "macroF@5/rare": "F, 1 to 3",
    "macroF@5/few": "F, up to 20",
    "macroF@5/medium": "F, 21 to 100",
    "macroF@5/many": "F, over 100",
}
NARROW = ("--data.max_length=100", "--model.backbone.hidden=100")
XR = ("--data.batch_size=16", "--model.backbone.pooling=mean", "--data.max_length=600")
XR += ("--model.head.inner.layers=1", "--stages.matcher.average_from=null", "--model.optimizer.lr=1e-4")
XR += ("--stages.matcher.groups={'head.*': {lr: 2.0e-3}}",)
IMPRINTING = ("--model.head.solver=identity", "--model.head.attention=false", "--stages.finetune.epochs=0")
SVM = ("--model.head.engine=OneVsRestSvm", "--model.head.engine.features=both")
DOCUMENTS = {
    ("reuters", False): (),
    ("eurlex", False): ("--data.limit_train=12000", "--data.limit_val=1000"),
    ("reuters", True): ("--data.limit_train=2000", "--data.limit_val=200"),
    ("eurlex", True): ("--data.limit_train=2000", "--data.limit_val=200"),
}


def rows_of(epochs: int, encoder: str | None, first_tokens: int) -> dict[str, Row]:
    if encoder:
        own = (*XR, *SVM, f"--model.backbone.name={encoder}", f"--model.backbone.first={first_tokens}")
        trained, plain = ((*own, f"--stages.matcher.epochs={number}") for number in (epochs, 0))
        return {
            "SVM": Row("svm"),
            "SVM, vectors of the encoder as it comes": Row("xr_transformer", plain),
            "LightXML": Row("xr_transformer", trained, "inner/"),
            "XR-Transformer's recipe": Row("xr_transformer", trained),
            "X-Transformer's: scores of both": Row("xr_transformer", trained, "both/"),
        }
    first, second = epochs // 2, epochs - epochs // 2
    return {
        "SVM": Row("svm"),
        "ProXML": Row("proxml"),
        "Joint": Row("joint", (*NARROW, f"--stages.main.epochs={epochs}")),
        "Joint, 128-d": Row("joint", (*NARROW, f"--stages.main.epochs={epochs}", "--model.head.hidden=128")),
        "HTTN": Row("httn", (*NARROW, f"--stages.head.epochs={epochs}")),
        "Imprinting": Row("httn", (*NARROW, *IMPRINTING), after="HTTN"),
        "OLTR": Row("oltr", (*NARROW, f"--stages.representation.epochs={first}", f"--stages.memory.epochs={second}")),
    }


def run_of(options: argparse.Namespace, rows: dict[str, Row], name: str, seed: int) -> Path:
    """Folder of a row's run."""
    row, limits = rows[name], DOCUMENTS[options.corpus, bool(options.encoder)]
    first = next(other for other in rows if rows[other].run == row.run)  # rows that share a run have one name
    slug = re.sub("[^a-z0-9]+", "_", first.lower()).strip("_") + ("_tiny" if options.encoder else "")
    settings = [f"--config=experiments/{row.experiment}_{options.corpus}.yaml", f"--seed_everything={seed}"]
    settings += [*limits, *row.options, *options.extra]
    if row.after:
        head = run_of(options, rows, row.after, seed) / "checkpoints" / "head.ckpt"
        settings += ["--from_stage=transfer", f"--ckpt={head}"]
    return fit(options.out, f"{slug}-{options.corpus}-{seed}", *settings)


def results_of(folder: Path, prefix: str) -> dict[str, float]:
    """Metrics of one of the run's rankings, and its seconds."""
    found = results(folder)
    return {name: found[f"{prefix}{name}"] for name in (*RANKING, *LABELS)} | {"seconds": found["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=5, help="epochs over all documents, in all stages together")
    parser.add_argument("--encoder", help="folder or name of a Hugging Face transformer")
    parser.add_argument("--first", type=int, default=32, help="tokens that the transformer reads")
    parser.add_argument("--only", nargs="+", help="names of rows")
    parser.add_argument("--out", type=Path, default=Path("runs/tail_baselines"))
    options, options.extra = parser.parse_known_args()
    rows = rows_of(options.epochs, options.encoder, options.first)
    chosen = [name for name in rows if name in (options.only or rows)]
    table = {
        name: [results_of(run_of(options, rows, name, seed), rows[name].prefix) for seed in options.seeds]
        for name in chosen
    }
    for names in ({name: name for name in RANKING}, LABELS | {"seconds": "seconds"}):
        lines = [[row, *(cell([r[name] for r in seeds]) for name in names)] for row, seeds in table.items()]
        print(markdown(["", *names.values()], lines), end="\n\n")


if __name__ == "__main__":
    main()
