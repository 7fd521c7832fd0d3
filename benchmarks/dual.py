"""Label texts: lexical matching of names as a baseline, and the cost of many labels.

`lexical` ranks labels by the words of their names in the document, as Annif's MLLM finds its candidates: the share of
the name's IDF that occurs, times the IDF, so that long matches of rare words come first. Nothing is trained.
`scale` measures a `DualEncoder` on a bag of words with generated label texts: memory, a step, encoding and search.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array

from backbones import Bow
from backbones.tfidf import TfIdf, smooth_idf
from datamodules import Batch, EurLex, LabelSpace, Targets, TextDataModule
from heads import DualEncoder, TransitionContext
from heads.base import top_labels
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.ranking_model import share_backbone

SHOWN = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@5/unseen", "nDCG@5/unseen", "R@5/rare", "nDCG@5/rare", "R@5/few")
WORDS = 8  # words of a name that are read; the first of a label text


def lexical(data: TextDataModule, depth: int) -> dict[str, float]:
    """Metrics of the test documents."""
    space, idf = data.space, smooth_idf(data.train_words())[0]
    names = name_words(data)
    totals = np.maximum(names @ idf, 1e-9)
    weights = csr_array(names.multiply(idf[None, :]).T) / totals  # (vocabulary, labels): shares
    counts, metric = TfIdf(space), RankingMetrics(space)
    for batch in data.test_dataloader():
        there = counts.counts(batch)
        there.data[:] = 1
        shares = torch.from_numpy((there[:, : space.vocab_size] @ weights).toarray())
        scores = shares**4 * torch.from_numpy(totals)  # nearly all words of the name must occur
        top = top_labels(scores.float(), depth)
        metric.update((top.scores / top.scores.amax(1, keepdim=True).clamp_min(1e-9)), top.labels, batch.targets)
    return {name: float(value) for name, value in metric.compute().items() if name in SHOWN}


def name_words(data: TextDataModule) -> csr_array:
    """First words of label texts, 0 or 1, (labels, vocabulary)."""
    pairs = set()
    for batch in data.label_batches(unseen=True):
        for label, ids, mask in zip(batch.rows.tolist(), batch.ids, batch.mask, strict=True):
            pairs |= {(label, word) for word in ids[mask][:WORDS].tolist() if label >= 0}
    label, word = np.array(sorted(pairs)).T
    return csr_array(coo_array((np.ones(len(label)), (label, word)), (data.space.num_scored, data.space.vocab_size)))


def scale(labels: int, dim: int, graph: bool, words: int = 60_000, size: int = 256, steps: int = 5) -> dict[str, float]:
    """Seconds and megabytes for generated label texts of eight words."""
    generator = torch.Generator().manual_seed(0)
    space = LabelSpace([str(i) for i in range(labels)], [1] * labels, size, vocab_size=words)
    backbone = Bow(space, dim=dim, dropout=0.0, sparse=True)
    backbone.tfidf.idf[1:] = 1.0
    head = DualEncoder(dim, space, label_length=8, rows=False, random_negatives=1024)
    share_backbone(head, backbone)

    def batch(rows: int, length: int) -> Batch:
        ids = torch.randint(1, words, (rows, length), generator=generator)
        targets = torch.randint(labels, (rows, 5), generator=generator).tolist()
        return Batch(ids, ids > 0, Targets.from_lists(targets), torch.arange(rows))

    texts = batch(labels, 8)
    head.read_label_texts(TransitionContext(labels=[(None, texts)]))  # type: ignore[list-item]
    documents, found = batch(size, 40), {"labels": float(labels)}
    optimizer = torch.optim.SparseAdam([backbone.words.weight], lr=1e-3)
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        head.loss(backbone(documents), documents.targets, "texts")["loss"].backward()
        optimizer.step()
    found["step of 256 documents, s"] = (time.perf_counter() - start) / steps
    with torch.no_grad():
        features = backbone.eval()(documents)
        for name, limit in (("exact", labels), ("graph", 0))[: 1 + graph]:
            head.approximate_above = limit
            start = time.perf_counter()
            head.outdate()
            head.encode_labels()
            found[f"vectors of all labels, {name}, s"] = time.perf_counter() - start
            start = time.perf_counter()
            head.rank(features, 100)
            found[f"search of 256 documents, {name}, s"] = time.perf_counter() - start
            if head.graph is not None:
                found["recall@10"] = float(head.checks(features, documents.targets)["search_recall@10"].nanmean())
            found[f"peak memory after {name}, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("lexical", "scale"))
    parser.add_argument("--root", help="folder of EURLEX57K, or of a part of it")
    parser.add_argument("--limit_train", type=int)
    parser.add_argument("--max_length", type=int, default=300)
    parser.add_argument("--labels", type=int, default=131_073)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--graph", action="store_true", help="measure the approximate search too")
    given = parser.parse_args()
    if given.what == "scale":
        print(json.dumps(scale(given.labels, given.dim, given.graph), indent=1))
    else:
        limits = {"max_length": given.max_length, "limit_train": given.limit_train}
        corpus = EurLex(root=given.root, unseen_labels="score", **limits)
        print(json.dumps(lexical(corpus, 1000), indent=1))
