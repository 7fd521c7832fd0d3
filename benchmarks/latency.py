"""Latency of prediction: documents a second of `zoo.load(...).tag`, one document at a time and 64.

    python benchmarks/latency.py RUN/checkpoints/best.ckpt ... --texts reuters/test.jsonl.gz

Members of a Blend are measured alone, too: each replaces the head of the same model. Rounds alternate between models
and sizes, and the best of a model counts. CPU time is reported as well, which other jobs of the machine disturb less.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import time
from pathlib import Path

import torch
from jobs import markdown

import zoo
from heads import Blend

SIZES = (1, 64)


def models(ckpts: list[str]) -> dict[str, zoo.Tagger]:
    """The model of each checkpoint, and its members."""
    found: dict[str, zoo.Tagger] = {}
    for ckpt in ckpts:
        tagger = zoo.load(ckpt)
        head, number = tagger.module.head, f"{len(found)} " * bool(found)
        found[f"{number}{type(head).__name__}"] = tagger
        if isinstance(head, Blend):
            for name, member in head.inner_heads.items():
                alone = zoo.load(ckpt)
                alone.module.head = member
                found[f"{number}its {name}"] = alone
    return found


def read_texts(file: str, documents: int) -> list[str]:
    with gzip.open(file, "rt", encoding="utf8") if file.endswith(".gz") else open(file, encoding="utf8") as lines:
        return [json.loads(line)["text"] for line in itertools.islice(lines, documents)]


def measure(tagger: zoo.Tagger, texts: list[str], size: int) -> tuple[float, float]:
    """Seconds of wall clock, and of CPU, for all texts."""
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(texts), size):
        tagger.tag(texts[start : start + size])
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ckpts", nargs="+", metavar="CKPT")
    parser.add_argument("--texts", required=True, help="JSON lines with a `text` each, such as a test split")
    parser.add_argument("--documents", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
    torch.set_num_threads(1)
    texts, taggers = read_texts(options.texts, options.documents), models(options.ckpts)
    best = {(name, size): (float("inf"), float("inf")) for name in taggers for size in SIZES}
    for tagger in taggers.values():
        tagger.tag(texts[:2])  # warm-up
    for _ in range(options.rounds):
        for name, size in best:
            wall, cpu = measure(taggers[name], texts, size)
            best[name, size] = (min(best[name, size][0], wall), min(best[name, size][1], cpu))
    heading = ["docs/s", *(f"{size} at a time{of}" for size in SIZES for of in ("", ", CPU"))]
    rows = [
        [name, *(f"{len(texts) / best[name, size][of]:.1f}" for size in SIZES for of in (0, 1))] for name in taggers
    ]
    print(f"{len(texts)} documents of {Path(options.texts).name}\n\n{markdown(heading, rows)}")


if __name__ == "__main__":
    main()
