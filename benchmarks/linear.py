"""Time of label trees in the zoo, compared with direct calls of omikuji on the same features in one process.

    python benchmarks/linear.py eurlex
    python benchmarks/linear.py reuters --head Bonsai --rounds 3

Direct calls are `train_on_data` on an existing file, and `predict` for each validation document. The zoo's time covers
the whole `fit` stage, starting from word counts, and the ranking of the validation documents, starting from batches.
Each round measures both; the ratio is that of the minimum times. CPU time is reported too, since other processes on the
machine affect it less than wall-clock time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from scipy.sparse import csr_array
from torch import Tensor

from backbones import Words
from datamodules import EurLex, Reuters, Targets, TextDataModule
from heads import Bonsai, Parabel
from heads.engines.omikuji_trees import library
from heads.engines.sparse_text import write_documents
from heads.tree.label_tree import label_matrix
from zoo.core.cores import available_cores

T = TypeVar("T")
HEADS = {"Parabel": Parabel, "Bonsai": Bonsai}
CORPORA = {"eurlex": EurLex, "reuters": Reuters}


class SingleProcessContext:
    """Transition context of a single process without a trainer."""

    seed, epoch, first = 0, 0, True

    def __init__(self, data: TextDataModule) -> None:
        self.data, self.backbone = data, Words(data.space)
        self.train_targets, self.train_words = data.train_targets, data.train_words

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        return words, targets

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        return iter(items)

    def sum(self, value: Tensor) -> Tensor:
        return value.clone()


class Stopwatch:
    """Wall-clock and CPU time by name; CPU time includes terminated child processes."""

    def __init__(self) -> None:
        self.last, self.parts = self._now(), dict[str, float]()

    def note(self, name: str) -> dict[str, float]:
        now = self._now()
        for kind, before, after in zip(("", " CPU"), self.last, now, strict=True):
            self.parts[name + kind] = after - before
        self.last = now
        return self.parts

    def _now(self) -> tuple[float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in used)


def direct(head: Parabel, file: Path, words: csr_array, k: int) -> dict[str, float]:
    """Train and rank as in omikuji's documentation."""
    model_class = library().Model
    parameters = model_class.default_hyper_param()
    for name, value in head.hyper.items():
        setattr(parameters, name, value)
    watch = Stopwatch()
    model = model_class.train_on_data(str(file), parameters)
    watch.note("fit")
    for row in range(words.shape[0]):
        own = slice(*words.indptr[row : row + 2])
        pairs = list(zip(words.indices[own].tolist(), words.data[own].tolist(), strict=True))
        model.predict(pairs, beam_size=head.beam, top_k=k)
    return watch.note("rank")


def in_the_zoo(head: Parabel, data: TextDataModule, k: int) -> dict[str, float]:
    context: Any = SingleProcessContext(data)
    watch = Stopwatch()
    head.fit(context)
    watch.note("fit")
    with torch.no_grad():
        for batch in data.val_dataloader():
            head.rank(context.backbone(batch), k)
    return watch.note("rank")


def validation_words(head: Parabel, data: TextDataModule) -> csr_array:
    return head.tfidf.matrix(data.prepared.rows("val").token_counts(data.space.vocab_size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--head", choices=HEADS, default="Parabel")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--k", type=int, default=100, help="number of labels to rank, as in validation")
    options = parser.parse_args()
    data = CORPORA[options.corpus](max_length=600, tokenizer="word", eval_batch_size=512)
    data.prepare_data()
    data.setup("fit")
    make = HEADS[options.head]
    head = make(1, data.space)
    counts = data.train_words()
    head.tfidf.learn(counts)
    times: dict[str, list[dict[str, float]]] = {"omikuji": [], "zoo": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.txt"
        labels = label_matrix(data.train_targets(), data.space.num_labels)
        write_documents(file, head.tfidf.matrix(counts), labels)
        for _ in range(options.rounds):
            times["omikuji"].append(direct(head, file, validation_words(head, data), options.k))
            times["zoo"].append(in_the_zoo(make(1, data.space), data, options.k))
    best, best_cpu = (
        {who: min(parts[f"fit{kind}"] + parts[f"rank{kind}"] for parts in measured) for who, measured in times.items()}
        for kind in ("", " CPU")
    )
    result = {
        "corpus": data.corpus_name,
        "head": options.head,
        "documents": [counts.shape[0], len(data.targets("val"))],
        "words": int(head.tfidf.matrix(counts).nnz),
        "cores": available_cores(),
        "seconds": {who: [{k: round(v, 2) for k, v in parts.items()} for parts in m] for who, m in times.items()},
        "ratio": round(best["zoo"] / best["omikuji"], 3),
        "ratio of CPU time": round(best_cpu["zoo"] / best_cpu["omikuji"], 3),
    }
    print(f"\nomikuji {best['omikuji']:.1f} s, zoo {best['zoo']:.1f} s: {result['ratio']} times as long")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
