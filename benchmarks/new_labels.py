"""Labels added to a trained model against training it again with them; the table of docs/results/httn.md.

    python benchmarks/new_labels.py --out runs/new_labels --jobs 2

We remove 20 labels with 5 to 100 training documents from the training set of Reuters, and train HTTN on the rest. Then
`zoo add-labels` adds them with 1, 3 and 5 documents each. For comparison, HTTN is retrained on a corpus in which these
labels have the same few documents, and on the whole corpus. Recall@5 is averaged over the 20 labels.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from jobs import cell, fit, markdown, results, run_parallel

import zoo
from datamodules import Reuters
from zoo.commands.add_labels import add_labels

SHOTS = (1, 3, 5)
Row = dict[str, Any]


def read(split: str) -> list[Row]:
    source = Reuters().corpus.sources[split]
    return [{"id": d.id, "text": d.text, "labels": list(d.labels)} for d in source.read(lambda amount: None)]


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf8")


def without(rows: list[Row], labels: set[str]) -> list[Row]:
    """Remove labels, and documents that have no other label."""
    kept = [row | {"labels": [label for label in row["labels"] if label not in labels]} for row in rows]
    return [row for row in kept if row["labels"]]


def examples(rows: list[Row], labels: list[str], shots: int, seed: int) -> list[Row]:
    """Draw `shots` documents for each label; a document gets the labels it was drawn for."""
    chosen: dict[str, Row] = {}
    for label in labels:
        having = sorted((row for row in rows if label in row["labels"]), key=lambda row: row["id"])
        for row in random.Random(f"{seed} {label}").sample(having, shots):
            chosen.setdefault(row["id"], row | {"labels": []})["labels"].append(label)
    return list(chosen.values())


def merged(base: list[Row], few: list[Row]) -> list[Row]:
    """Add documents, or their labels if they are already there, to the training documents."""
    by_id = {row["id"]: row for row in base}
    for row in few:
        known = by_id.get(row["id"], {}).get("labels", [])
        by_id[row["id"]] = row | {"labels": [*known, *row["labels"]]}
    return list(by_id.values())


def recall(ckpt: Path, test: list[Row], labels: list[str]) -> float:
    """Mean recall@5 of the labels, in per cent."""
    tagged = zoo.load(ckpt).tag([row["text"] for row in test], k=5)
    hits, total = Counter(), Counter()
    for row, tags in zip(test, tagged, strict=True):
        true = set(row["labels"]) & set(labels)
        total.update(true)
        hits.update(true & {tag.label for tag in tags})
    return 100 * sum(hits[label] / total[label] for label in labels) / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/new_labels")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument(
        "--draws", type=int, default=3, help="number of random draws of documents; retraining uses the first"
    )
    options, extra = parser.parse_known_args()
    out = Path(options.out)
    train, test = read("train"), read("test")
    counts = Counter(label for row in train for label in row["labels"])
    tested = {label for row in test for label in row["labels"]}
    labels = sorted(random.Random(0).sample(sorted(x for x, n in counts.items() if 5 <= n <= 100 and x in tested), 20))
    test = [row for row in test if set(row["labels"]) & set(labels)]
    print(f"{len(labels)} labels, {len(test)} test documents have one: {', '.join(labels)}\n")

    base = without(train, set(labels))
    few = {(shots, draw): examples(train, labels, shots, draw) for shots in SHOTS for draw in range(options.draws)}
    corpora = {"base": base, "whole": train} | {f"retrain{shots}": merged(base, few[shots, 0]) for shots in SHOTS}
    for name, rows in corpora.items():
        write(out / name / "train.jsonl", rows)
        write(out / name / "test.jsonl", read("test"))
    config = "--config=experiments/httn_reuters.yaml"
    tasks = [partial(fit, out, f"httn-{name}", config, f"--data.root={out / name}", *extra) for name in corpora]
    folders = dict(zip(corpora, run_parallel(tasks, options.jobs), strict=True))
    best = {name: folder / "checkpoints" / "best.ckpt" for name, folder in folders.items()}

    table = []
    for shots in SHOTS:
        added, seconds = [], []
        for draw in range(options.draws):
            write(out / f"few{shots}-{draw}.jsonl", few[shots, draw])
            start = time.perf_counter()
            add_labels(ckpt=str(best["base"]), input=str(out / f"few{shots}-{draw}.jsonl"), out=str(out / "grown.ckpt"))
            seconds.append(time.perf_counter() - start)
            added.append(recall(out / "grown.ckpt", test, labels))
        again = f"retrain{shots}"
        numbers = [cell(added), cell(seconds, 1), cell([recall(best[again], test, labels)])]
        table.append([str(shots), *numbers, f"{results(folders[again])['seconds']:,.0f}"])
    table.append(
        ["all", "", "", cell([recall(best["whole"], test, labels)]), f"{results(folders['whole'])['seconds']:,.0f}"]
    )
    print(markdown(["documents per label", "add-labels, recall@5", "seconds", "retrained, recall@5", "seconds"], table))


if __name__ == "__main__":
    main()
