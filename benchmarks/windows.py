"""The table of long documents in docs/guides/transformers.md: document vectors of windows against truncated documents.

    python benchmarks/windows.py --encoder FOLDER_OF_MINILM

SVMs on document vectors of a part of EURLEX57K, measured on validation documents. The vectors of all windows are
computed once; those of fewer windows are means or maxima over the first ones, as `data.windows` makes them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from jobs import markdown
from scipy.sparse import csr_array
from torch import Tensor

from backbones import Features, Transformer
from backbones.long_documents import encode_windows
from datamodules import Batch, EurLex, Targets
from heads import OneVsRestSvm, TransitionContext
from heads.tree.label_tree import label_matrix
from zoo.training.ranking_metrics import RankingMetrics

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5")
BATCH = 16


def without_tokens(features: Features) -> Features:
    none = features.tokens[..., :0].clone()
    return Features(none, features.mask, features.pooled, (none,), (features.pooled,))


class Vectors:
    """Vectors of the windows of documents, encoded once."""

    def __init__(self, data: EurLex, model: Transformer, split: str, size: int) -> None:
        rows = data.prepared.rows(split)
        chosen = np.random.default_rng(0).permutation(len(rows))[:size]
        self.order = chosen[np.argsort(-rows.lengths[chosen], kind="stable")]
        self.batches = [rows[self.order[i : i + BATCH].tolist()] for i in range(0, size, BATCH)]
        self.targets = data.targets(split).take(torch.from_numpy(self.order))
        self.windows: list[Features] = []
        start = time.process_time()
        with torch.inference_mode():
            for batch in self.batches:
                if not batch.window:
                    self.windows.append(without_tokens(model.encode(batch)))
                    continue

                def keep(parts: Batch) -> Features:
                    self.windows.append(without_tokens(model.encode(parts)))
                    return self.windows[-1]

                encode_windows(batch, keep, "mean")
        self.seconds = time.process_time() - start

    def combined(self, windows: int, combine: str) -> Tensor:
        """Vectors of documents cut to the first windows."""
        found = []
        for batch, known in zip(self.batches, self.windows, strict=True):
            if not batch.window:
                found.append(known.pooled)
                continue
            sizes = F.pad(batch.mask, (0, -batch.mask.shape[1] % batch.window)).view(len(batch), -1, batch.window)
            first = sizes.any(2).nonzero()[:, 1] < windows  # of the windows that have tokens
            tokens, mask, pooled = known.tokens[first], known.mask[first], known.pooled[first]
            part = Features(tokens, mask, pooled, (tokens,), (pooled,))
            short = batch.first(windows * batch.window)
            found.append(encode_windows(short, lambda _, part=part: part, combine).pooled)  # type: ignore[misc, arg-type]
        return torch.cat(found)


def measure(data: EurLex, train: tuple[Tensor, Targets], test: tuple[Tensor, Targets]) -> dict[str, float]:
    vectors, targets = train
    engine = OneVsRestSvm(vectors.shape[1], data.space, features="dense", prune=0, workers=1)
    rows, others = (csr_array(F.normalize(part).numpy()) for part in (vectors, test[0]))
    engine.learn(rows, label_matrix(targets, data.space.num_labels), TransitionContext())
    ranking = engine.rank_rows(others, 20)
    metrics = RankingMetrics(data.space)
    metrics.update(ranking.scores, ranking.labels, test[1])
    return {name: float(value) for name, value in metrics.compute().items() if name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--val", type=int, default=500)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--single", type=int, nargs="+", default=[128, 256])
    args = parser.parse_args()
    table, model = [], None
    for length, windows in ((args.window, args.windows), *((length, 1) for length in args.single)):
        shared = {"limit_train": args.train, "max_length": length, "windows": windows, "tokenizer": args.encoder}
        data = EurLex(**shared)
        model = model or Transformer(data.space, args.encoder, pooling="mean").eval()
        train, val = (Vectors(data, model, split, size) for split, size in (("train", args.train), ("val", args.val)))
        rate = (args.train + args.val) / (train.seconds + val.seconds)
        print(f"{windows} x {length}: {rate:.1f} documents per second of CPU time", flush=True)
        numbers = [2**i for i in range(windows.bit_length()) if 2**i <= windows]
        for number, combine in [*((n, "mean") for n in numbers), *((n, "max") for n in numbers[1:])]:
            parts = [(one.combined(number, combine), one.targets) for one in (train, val)]
            row = {"tokens": f"{number} x {length}", "combine": combine if number > 1 else "", **measure(data, *parts)}
            print(row, flush=True)
            table.append([row["tokens"], row["combine"], *(f"{100 * row[name]:.2f}" for name in SHOWN)])
    print(markdown(["windows", "combine", *SHOWN], table))


if __name__ == "__main__":
    main()
