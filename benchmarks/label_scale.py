"""Scaling with the number of labels: training step, peak memory and ranking time of label trees and dense heads.

    python benchmarks/label_scale.py --out FOLDER [--sizes 4000 ... 670000] [--heads PLT ...] [--plot FILE.svg]

The corpora are synthetic, with 60,000 documents each. The encoder is a small BiLSTM with at most 30,000 words. The
trees of `PLT` and `LightXML` have clusters of at most --max_leaf labels and 16 children per node. Levels are added
until the top level has at most 64 nodes, so that every level costs the same, and their number is logarithmic. The other
heads, `AttentionXML` without a tree and `Linear`, score all labels. Beyond 100,000 labels, trees have sparse gradients,
which `RowAdam` applies; the other heads use fused Adam.

Each measurement is a separate process with at most --limit_gb of memory. A step is forward, backward, clipping and
update for a batch of 40; the encoder's part is its forward and backward. Documents keep at most 5 labels there, because
synthetic corpora with many labels have more labels per document; a step with all labels is reported too. A ranking
returns the 5 best labels, including the encoder's time. Times are medians of wall-clock time or, with --cpu_time, of
CPU time, which is more reliable on a busy machine if OMP_NUM_THREADS is 1. Trees are built in another process, whose
time and memory are reported separately. Results are appended to results.jsonl in --out, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from label_scale_tables import HEADS, Result, head_results, plot, read_results, tables
from torch import Tensor, nn

from backbones import BiLSTM, Features
from backbones.tfidf import tfidf
from datamodules import Batch, LabelSpace, Sample, Targets
from heads import PLT, AttentionXML, Head, LightXML, Linear, TreeHead
from heads.tree.label_tree import balanced_clusters, level_widths, pifa
from heads.tree.plt import TreeSettings
from heads.tree.search import LabelTree
from zoo.training.optimizers import RowAdam, clip_gradients

SIZES = (4_000, 30_000, 130_000, 670_000)
TREES = ("PLT", "LightXML")
BATCH, BEAM, FANOUT, TOP = 40, 16, 16, 64
CLIP = 5.0  # as in experiments/parts/trainer.yaml
LABELS = 5  # maximum number of labels of a document in a step


# --- single measurements, each in its own process


def corpus(options: Any) -> Sample:
    settings = {"max_length": 100, "max_words": 30_000, "batch_size": BATCH, "eval_batch_size": BATCH}
    return Sample(options.documents, options.labels, words_per_document=80, **settings)


def tree_shape(num_labels: int, max_leaf: int) -> TreeSettings:
    """Choose the number of levels so that the top level has at most `TOP` nodes."""
    height = 1
    while level_widths(num_labels, None, max_leaf, height, FANOUT)[0] > TOP:
        height += 1
    return TreeSettings(max_leaf=max_leaf, height=height, fanout=FANOUT)


def clusters_file(options: Any) -> Path:
    return Path(options.out) / f"clusters-{options.labels}.npy"


def build_tree(options: Any) -> Result:
    data = corpus(options)
    shape = tree_shape(options.labels, options.max_leaf)
    widths = level_widths(options.labels, None, shape.max_leaf, shape.height, shape.fanout)
    before, start = peak_gb(), time.perf_counter()
    features = pifa(tfidf(data.train_words()), data.train_targets(), options.labels)
    clusters = balanced_clusters(features, int(math.log2(widths[-1])), seed=0)
    seconds = time.perf_counter() - start
    np.save(clusters_file(options), clusters)
    return {"widths": widths, "seconds": seconds, "before_gb": before, "gb": peak_gb()}


def make_head(options: Any, dim: int, space: LabelSpace) -> Head:
    if options.measure not in TREES:
        return {"AttentionXML": AttentionXML, "Linear": Linear}[options.measure](dim, space)
    shape = tree_shape(options.labels, options.max_leaf)
    kind = {"PLT": PLT, "LightXML": LightXML}[options.measure]
    head = kind(dim, space, tree=shape, beam=BEAM, sparse_above=options.sparse_above)
    head.trees[0].plant(torch.from_numpy(np.load(clusters_file(options))))  # type: ignore[operator]
    return head


def measure_head(options: Any) -> Result:
    torch.manual_seed(0)
    data = corpus(options)
    space = data.space
    train, val, single = batches(data, options.steps)
    before = peak_gb()
    backbone = BiLSTM(space, embed_dim=100, hidden=100, dropout=0.3, pooling="mean")
    head = make_head(options, backbone.dim, space)
    found: Result = {"before_gb": before, "model_gb": peak_gb(), "vocabulary": space.vocab_size}
    found["candidates"] = candidates(head)
    nn.ModuleList([backbone, head]).eval()
    found |= {"rank": ranking_ms(backbone, head, val, options), "single": ranking_ms(backbone, head, single, options)}
    found["rank_gb"] = peak_gb()
    nn.ModuleList([backbone, head]).train()
    step = Step(backbone, head, options)
    found["step"] = medians(step, [limited(batch) for batch in train], options)
    found["step_all"] = medians(step, train, options)
    return found | {"gb": peak_gb(), "labels_per_document": sum(space.counts) / space.num_documents}


def batches(data: Sample, number: int) -> tuple[list[Batch], list[Batch], list[Batch]]:
    """Training batches, validation batches of all lengths, and single validation documents of all lengths."""
    train, val = data.train_dataloader(), data.val_dataloader()
    chosen = [rows for _, rows in zip(range(number), train.sampler, strict=False)]
    of_val = list(val.sampler)
    of_val = [of_val[i] for i in np.linspace(0, len(of_val) - 2, number, dtype=int)]  # the last batch may be smaller
    single = [rows[:1] for rows in of_val]
    return [train.dataset[r] for r in chosen], [val.dataset[r] for r in of_val], [val.dataset[r] for r in single]


def limited(batch: Batch) -> Batch:
    """Keep at most `LABELS` random labels of each document."""
    rows = np.split(batch.targets.indices.numpy(), batch.targets.indptr[1:-1].numpy())
    random = np.random.default_rng(int(batch.rows[0]))
    return replace(batch, targets=Targets.from_lists([random.permutation(row)[:LABELS].tolist() for row in rows]))


def candidates(head: Head) -> int:
    """Number of nodes that are scored to rank a document, over all levels."""
    if not isinstance(head, TreeHead):
        return head.num_labels
    tree = head.trees[0]
    assert isinstance(tree, LabelTree)
    total = known = tree.widths[0]
    for above, width in zip(tree.widths[:-1], tree.widths[1:-1], strict=False):
        known = min(known, BEAM) * (width // above)
        total += known
    return total + min(known, BEAM) * tree.labels_of.shape[1]


@torch.no_grad()
def ranking_ms(backbone: BiLSTM, head: Head, documents: list[Batch], options: Any) -> Result:
    """Ranking time per document, in total and by component."""

    def rank(batch: Batch) -> Result:
        clock = Clock(options)
        features = backbone(batch)
        clock.lap("encoder")
        head.rank(features, 5)
        clock.lap("head")
        return {name: ms / len(batch) for name, ms in clock.times().items()}

    return medians(rank, documents, options)


class Step:
    """Training step whose components are timed separately: the head's gradient is passed to the encoder by hand."""

    def __init__(self, backbone: BiLSTM, head: Head, options: Any) -> None:
        self.backbone, self.head, self.options = backbone, head, options
        self.parameters = [*backbone.parameters(), *head.parameters()]
        optimizer = RowAdam if isinstance(head, TreeHead) else torch.optim.Adam
        self.optimizer = optimizer(self.parameters, lr=1e-3, fused=True)

    def __call__(self, batch: Batch) -> Result:
        clock = Clock(self.options)
        features = self.backbone(batch)
        clock.lap("encoder")
        tokens, pooled = (t.detach().requires_grad_() for t in (features.tokens, features.pooled))
        detached = Features(tokens, features.mask, pooled, (tokens,))
        self.head.loss(detached, batch.targets, "train")["loss"].backward()  # type: ignore[no-untyped-call]
        clock.lap("head")
        pairs = [(t, leaf.grad) for t, leaf in ((features.tokens, tokens), (features.pooled, pooled))]
        used: list[tuple[Tensor, Tensor]] = [(t, grad) for t, grad in pairs if grad is not None]
        torch.autograd.backward([t for t, _ in used], [grad for _, grad in used])
        clock.lap("encoder")
        clip_gradients((p for p in self.parameters if p.grad is not None), CLIP, "norm")
        clock.lap("clipping")
        self.optimizer.step()
        self.optimizer.zero_grad()
        clock.lap("optimizer")
        return clock.times()


class Clock:
    """Milliseconds by component, and in total."""

    def __init__(self, options: Any) -> None:
        self.now = time.process_time if options.cpu_time else time.perf_counter
        self.parts: dict[str, float] = defaultdict(float)
        self.last = self.now()

    def lap(self, name: str) -> None:
        now = self.now()
        self.parts[name] += 1000 * (now - self.last)
        self.last = now

    def times(self) -> dict[str, float]:
        return {**self.parts, "ms": sum(self.parts.values())}


def medians(run: Callable[[Batch], Result], documents: Iterable[Batch], options: Any) -> Result:
    """Median of each component over as many runs as --seconds allows, at least two; the first quarter is warm-up."""
    found: list[Result] = []
    end = time.perf_counter() + options.seconds
    for batch in documents:
        found.append(run(batch))
        if len(found) > 1 and time.perf_counter() > end:
            break
    counted = found[max(1, len(found) // 4) :] or found
    return {name: statistics.median(row[name] for row in counted) for name in found[0]} | {"runs": len(counted)}


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(options: Any) -> None:
    limit = int(options.limit_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    load = os.getloadavg()[0]
    start = time.perf_counter()
    if options.measure == "corpus":
        space = corpus(options).space
        found: Result = {"seconds": time.perf_counter() - start, "num_labels": space.num_labels}
    else:
        found = build_tree(options) if options.measure == "tree" else measure_head(options)
    facts = {
        "load": round(load, 1),
        "threads": torch.get_num_threads(),
        "cpu_time": options.cpu_time,
        "torch": torch.__version__,
    }
    print(json.dumps({"what": options.measure, "labels": options.labels} | found | facts))


# --- all measurements


def in_process(options: Any, what: str, labels: int) -> Result | None:
    """Measure in a separate process; print the reason and return None if it fails."""
    names = ("out", "documents", "steps", "seconds", "max_leaf", "sparse_above", "limit_gb")
    given = [f"--{name}={getattr(options, name)}" for name in names]
    given += ["--cpu_time"] if options.cpu_time else []
    command = [sys.executable, __file__, f"--measure={what}", f"--labels={labels}", *given]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{what}, {labels:,} labels: failed: {reason}", file=sys.stderr, flush=True)
        return None
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_all(options: Any) -> None:
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for labels in options.sizes:
        before = ["corpus", "tree"] if set(TREES) & set(options.heads) else ["corpus"]
        for what in [*before, *options.heads]:
            if (what, labels) in read_results(options):
                continue
            print(f"{what}, {labels:,} labels ...", file=sys.stderr, flush=True)
            if (row := in_process(options, what, labels)) is not None:
                with (Path(options.out) / "results.jsonl").open("a", encoding="utf8") as file:
                    file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of results; use different folders for different settings")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=list(SIZES), help="numbers of labels; none prints existing results only"
    )
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=HEADS)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=40, help="number of steps, ranked batches and single documents")
    parser.add_argument("--seconds", type=float, default=120, help="time limit of each of these")
    parser.add_argument("--cpu_time", action="store_true", help="measure CPU time")
    parser.add_argument("--max_leaf", type=int, default=64)
    parser.add_argument("--sparse_above", type=int, default=100_000)
    parser.add_argument("--limit_gb", type=float, default=20)
    parser.add_argument("--plot", help="svg or png file for the plot")
    parser.add_argument("--measure", choices=("corpus", "tree", *HEADS), help=argparse.SUPPRESS)
    parser.add_argument("--labels", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options)
    measure_all(options)
    if not head_results(read_results(options)):
        sys.exit(f"error: {options.out} has no results of heads yet; set --sizes")
    print(tables(options))
    if options.plot:
        plot(options)
    return None


if __name__ == "__main__":
    main()
