"""Time and quality of balanced label clusters compared with PECOS, for the same features and number of clusters.

    python benchmarks/label_tree.py [reuters | eurlex57k | sample] [--peer PYTHON] [--clusters K ...] [--rounds R]
    python benchmarks/label_tree.py --generated 670000 [--clusters 8192 131072]

`--peer` is the interpreter of another environment with `pip install libpecos`. Measurements alternate, and the best
round counts; `defaults` is PECOS with its default settings. Quality is the mean cosine of a label's features and its
cluster's centre. On a busy machine, threads wait for each other, so also measure with `--threads 1`. `--generated`
builds trees over that many labels on at most 100,000 documents of the synthetic corpus, and reports peak memory and the
size of the features.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, load_npz, save_npz

CORPORA = ("reuters", "eurlex57k", "sample")
DEFAULT_LEAF = 100  # maximum number of labels in a cluster, by default in PECOS


def corpus_features(name: str) -> csr_array:
    from datamodules import EurLex, Reuters, Sample

    data = {"reuters": Reuters, "eurlex57k": EurLex, "sample": Sample}[name]()
    return label_features(data)


def generated_features(labels: int) -> csr_array:
    from datamodules import Sample

    documents = min(100_000, max(labels // 4, 3000))
    data = Sample(num_documents=documents, num_labels=labels, words_per_document=100, max_length=100)
    return label_features(data)


def label_features(data: Any) -> csr_array:
    """PIFA features from the token ids of a corpus, and what making them takes."""
    from backbones.tfidf import tfidf
    from heads.tree.label_tree import pifa

    counts, targets = data.train_words(), data.train_targets()
    start = time.perf_counter()
    words = tfidf(counts)
    middle = time.perf_counter()
    features = pifa(words, targets, data.space.num_labels)
    seconds = middle - start, time.perf_counter() - middle
    print(f"{data.corpus_name}: {counts.shape[0]:,} documents, {features.shape[0]:,} labels,", end=" ")
    print(f"{features.nnz / features.shape[0]:.0f} nonzeros each; tf-idf {seconds[0]:.2f} s, pifa {seconds[1]:.2f} s")
    return features


def quality(features: csr_array, cluster_of: np.ndarray) -> float:
    from backbones.tfidf import unit_segments

    labels = len(cluster_of)
    members = csr_array((np.ones(labels, dtype=np.float32), cluster_of, np.arange(labels + 1)))
    sums = (members.T.tocsr() @ features).tocsr()
    # A label's cosine summed over its cluster's labels: the centre times the sum of their features
    return float(sums.data @ unit_segments(sums.data, sums.indptr) / labels)


class Peer:
    """PECOS in its own process, which reads the features once and clusters them on request."""

    def __init__(self, python: str, features: csr_array, folder: Path) -> None:
        save_npz(folder / "features.npz", csr_matrix(features), compressed=False)
        command = [python, __file__, f"--serve={folder}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = folder

    def __call__(self, **settings: int) -> tuple[float, np.ndarray]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(settings), file=self.process.stdin, flush=True)
        seconds = float(self.process.stdout.readline())
        return seconds, np.load(self.folder / "clusters.npy")


def serve(folder: Path) -> None:
    """Serve clustering requests in the process of PECOS: read a line of settings, print the seconds."""
    from pecos.xmc import Indexer

    features = load_npz(folder / "features.npz")
    places = features.indices.astype(np.int32), features.indptr.astype(np.int32)
    features = csr_matrix((features.data, *places), features.shape)
    while line := input_line():
        start = time.perf_counter()
        chain = Indexer.gen(features, **json.loads(line))
        seconds = time.perf_counter() - start
        np.save(folder / "clusters.npy", chain[-1].tocsr().indices.astype(np.int64))
        print(seconds, flush=True)


def input_line() -> str:
    try:
        return input()
    except EOFError:
        return ""


def ours(features: csr_array, clusters: int, threads: int | None) -> tuple[float, np.ndarray]:
    from heads.tree.label_tree import balanced_clusters

    start = time.perf_counter()
    found = balanced_clusters(features, clusters.bit_length() - 1, seed=0, threads=threads)
    return time.perf_counter() - start, found


def compare(features: csr_array, options: Any) -> None:
    """Print time, ratio and quality for each number of clusters."""
    labels = features.shape[0]
    default = 2 ** max(1, int(np.ceil(np.log2(labels / DEFAULT_LEAF))))
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(options.peer, features, Path(folder)) if options.peer else None
        names = ["clusters", "zoo, s", "PECOS, s", "zoo / PECOS", "quality zoo", "quality PECOS", "load"]
        print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for clusters in options.clusters or [default, default * 8]:
            same = {"max_leaf_size": -(-labels // clusters), "nr_splits": 2}
            compare_one(f"{clusters}", features, clusters, peer, same, options)
            if clusters == default and peer:
                compare_one(f"{clusters}, defaults", features, clusters, peer, {}, options)
        if peer:
            peer.process.communicate()


def compare_one(
    name: str, features: csr_array, clusters: int, peer: Peer | None, settings: dict[str, int], options: Any
) -> None:
    best: dict[str, tuple[float, np.ndarray]] = {}
    settings = settings | ({"threads": options.threads} if options.threads else {})
    for _ in range(options.rounds):
        found = {"zoo": ours(features, clusters, options.threads)} | ({"PECOS": peer(**settings)} if peer else {})
        best = {who: min(best.get(who, one), one, key=lambda run: run[0]) for who, one in found.items()}
    seconds = {who: run[0] for who, run in best.items()}
    cells = [name, *(f"{seconds[who]:.2f}" if who in seconds else "" for who in ("zoo", "PECOS"))]
    cells.append(f"{seconds['zoo'] / seconds['PECOS']:.2f}" if peer else "")
    for who in ("zoo", "PECOS"):
        if who in best:
            assert best[who][1].max() + 1 == clusters, f"{who} made {best[who][1].max() + 1} clusters"
        cells.append(f"{quality(features, best[who][1]):.4f}" if who in best else "")
    print(f"| {' | '.join([*cells, f'{os.getloadavg()[0]:.1f}'])} |", flush=True)


def build(features: csr_array, options: Any) -> None:
    """Build trees over generated labels, and print time, cluster sizes and memory."""
    size = sum(part.nbytes for part in (features.data, features.indices, features.indptr)) / 1e6
    for clusters in options.clusters or [8192]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        seconds, found = ours(features, clusters, options.threads)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        sizes = np.bincount(found, minlength=clusters)
        print(f"{clusters:,} clusters of {sizes.min()} to {sizes.max()} labels: {seconds:.1f} s,", end=" ")
        print(f"quality {quality(features, found):.4f}, features {size:.0f} MB,", end=" ")
        print(f"peak {peak:.0f} MB ({before:.0f} before), load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default="eurlex57k", choices=CORPORA)
    parser.add_argument("--peer", help="Python interpreter with libpecos")
    parser.add_argument(
        "--clusters",
        type=int,
        nargs="+",
        help="powers of two; by default the number of PECOS and 8 times as many",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="number of threads; all cores by default")
    parser.add_argument("--generated", type=int, help="number of labels to generate instead of using a corpus")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.generated:
        build(generated_features(options.generated), options)
    else:
        compare(corpus_features(options.corpus), options)


if __name__ == "__main__":
    main()
