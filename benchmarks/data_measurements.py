"""Single measurements of `benchmarks/data.py`, which runs them in separate processes; the last line is JSON.

python benchmarks/data_measurements.py zoo FOLDER TOKENIZER
python benchmarks/data_measurements.py datasets FOLDER TOKENIZER WORKERS
python benchmarks/data_measurements.py generate FOLDER DOCUMENTS
python benchmarks/data_measurements.py memory FOLDER STEPS
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

LABELS, WORDS, WORDS_PER_DOCUMENT, VALIDATION = 13_330, 50_000, 100, 1_000


def now() -> np.ndarray:
    """Wall-clock time, and CPU time of this process and its terminated children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in used)])


def zoo(folder: str, tokenizer: str) -> dict[str, list[float]]:
    """Time from files to the last training batch."""
    import transformers.models.auto.tokenization_auto  # noqa: F401  imported before the measurement starts

    from datamodules import TextFiles

    files = {split: f"{folder}/{split}.jsonl.gz" for split in ("train", "val", "test")}
    start = now()
    data = TextFiles(**files, tokenizer=tokenizer, max_length=500, batch_size=64)
    data.prepare_data()
    data.setup("fit")
    seen = sum(len(batch) for batch in data.train_dataloader())
    assert seen == data.space.num_documents
    return {"all": (now() - start).tolist()}


def datasets(folder: str, tokenizer: str, workers: str) -> dict[str, list[float]]:
    """Time of tokenization only, and including loading."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    fast = AutoTokenizer.from_pretrained(tokenizer)
    files = {split: f"{folder}/{split}.jsonl.gz" for split in ("train", "val", "test")}
    start = now()
    loaded = load_dataset("json", data_files=files)
    middle = now()
    loaded.map(
        lambda rows: fast(rows["text"], truncation=True, max_length=500),
        batched=True,
        remove_columns=["text"],
        num_proc=int(workers) or None,
    )
    return {"map": (now() - middle).tolist(), "all": (now() - start).tolist()}


def generate(folder: str, documents: str) -> None:
    """Generate a corpus with 5 of 13,330 labels per document; even small ones have all labels and nearly all words."""
    random = np.random.default_rng(0)
    words = np.array([f"w{number:05d}" for number in range(WORDS)])
    for split, size in (("train", int(documents)), ("val", VALIDATION)):
        with gzip.open(f"{folder}/{split}.jsonl.gz", "wt", compresslevel=1) as file:
            for number in range(size):
                drawn = words[(random.random(WORDS_PER_DOCUMENT) ** 3 * WORDS).astype(np.int64)]
                labels = [2 * number % LABELS, (2 * number + 1) % LABELS, *random.integers(0, LABELS, 3).tolist()]
                row = {"id": f"{split}{number}", "text": " ".join(drawn.tolist()), "labels": labels}
                file.write(json.dumps(row) + "\n")


class Peak:
    """Context manager that measures peak anonymous memory of this process in megabytes."""

    def __enter__(self) -> Peak:
        self.megabytes, self._ended, self._start = 0.0, threading.Event(), time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self.seconds = time.perf_counter() - self._start

    def _watch(self) -> None:
        while True:
            self.megabytes = max(self.megabytes, anonymous_megabytes())
            if self._ended.wait(0.01):
                return


def anonymous_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def memory(folder: str, steps: str) -> dict[str, Any]:
    import pytorch_lightning as pl

    from backbones import BiLSTM
    from datamodules import TextFiles
    from heads import Linear
    from zoo.training.module import ZooModule

    files = {split: f"{folder}/{split}.jsonl.gz" for split in ("train", "val")}
    data = TextFiles(**files, batch_size=64)
    before = anonymous_megabytes()
    with Peak() as preparing:
        documents = data.space.num_documents
    sampler = data.train_dataloader().sampler
    start = time.perf_counter()
    next(iter(sampler))
    shuffling = time.perf_counter() - start
    del sampler
    trainer = pl.Trainer(
        max_steps=int(steps),
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    module = ZooModule(data.space, lambda space: BiLSTM(space, embed_dim=32, hidden=32), Linear)
    with Peak() as training:
        trainer.fit(module, datamodule=data)
    return {
        "documents": documents,
        "megabytes before": round(before),
        "preparing": {"megabytes": round(preparing.megabytes), "seconds": round(preparing.seconds, 1)},
        "training": {"megabytes": round(training.megabytes), "seconds": round(training.seconds, 1)},
        "seconds to the first shuffled batch": round(shuffling, 2),
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    verb, *arguments = sys.argv[1:]
    os.environ.setdefault("ZOO_CACHE", f"{arguments[0]}/cache")
    verbs: dict[str, Any] = {"zoo": zoo, "datasets": datasets, "generate": generate, "memory": memory}
    print(json.dumps(verbs[verb](*arguments)))


if __name__ == "__main__":
    main()
