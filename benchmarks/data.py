"""Cost of preparing a corpus: throughput compared with other libraries, and memory by corpus size.

    python benchmarks/data.py speed --peer PYTHON_WITH_LIBMULTILABEL --rounds 3
    python benchmarks/data.py memory --sizes 10000 100000 1200000

`speed` measures EURLEX57K from jsonl.gz to batches: fingerprint, reading, vocabulary, tokenization, cache, and one pass
over all training batches. It alternates with two other libraries, each in its own process, without import times:

- LibMultiLabel's data loading for networks, from its own text format, with the same pass; both use words.
- `datasets` with `map(batched=True)`: tokenization only, without a pass; both use the same fast tokenizer.

The other libraries are measured with and without worker processes; their best result counts. CPU time is reported too,
since other processes on the machine affect it less than wall-clock time. Every round starts with empty caches.

`memory` measures peak anonymous memory while a generated corpus is prepared, and while a model is trained on it for
some steps. Pages of memory-mapped files are not counted, since the system can reclaim them. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from datamodules.corpora.text_files import files_in

LIBMULTILABEL = Path(__file__).with_name("data_libmultilabel.py")
MEASUREMENTS = Path(__file__).with_name("data_measurements.py")
PEERS = ["libmultilabel", "datasets"]
WORKERS = (0, 2)  # worker processes of the other libraries


def copy_corpus(folder: Path, documents: int | None) -> int:
    """Copy EURLEX57K, or its first documents of each split, to a folder; return the number of documents."""
    size = 0
    for split, path in files_in(Path(os.environ["ZOO_DATA"]) / "eurlex57k").items():
        with gzip.open(path, "rb") as source, gzip.open(folder / f"{split}.jsonl.gz", "wb") as sink:
            for line in islice(source, documents):
                sink.write(line)
                size += 1
    return size


def write_for_peer(folder: Path) -> None:
    """Convert the corpus to LibMultiLabel's format, lines of labels<TAB>text."""
    for path in folder.glob("*.jsonl.gz"):
        with (
            gzip.open(path, "rt", encoding="utf8") as source,
            (folder / path.name.replace("jsonl.gz", "txt")).open("w", encoding="utf8") as sink,
        ):
            for row in map(json.loads, source):
                sink.write(f"{' '.join(row['labels'])}\t{' '.join(row['text'].split())}\n")
    (folder / "vectors.txt").write_text("the 0.0\n")


def train_tokenizer(folder: Path) -> None:
    """Train a WordPiece tokenizer on the first training documents."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    with gzip.open(folder / "train.jsonl.gz", "rt", encoding="utf8") as source:
        texts = [json.loads(line)["text"] for line in islice(source, 5000)]
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=30_000, show_progress=False)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **names)
    fast.save_pretrained(folder / "tokenizer")


def measured(*command: str | Path, **environment: str) -> Any:
    """Run a command with empty caches, and return the JSON of its last line."""
    with tempfile.TemporaryDirectory() as cache:
        variables = os.environ | {"HF_DATASETS_CACHE": cache, "ZOO_CACHE": cache} | environment
        done = subprocess.run([*map(str, command)], env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def one_round(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Wall-clock and CPU seconds of every task."""
    runs: dict[str, list[float]] = {}
    if "libmultilabel" in options.against:
        runs["zoo, words"] = measured(sys.executable, MEASUREMENTS, "zoo", folder, "word")["all"]
        for workers in WORKERS:
            side = measured(options.peer, LIBMULTILABEL, folder, str(workers))
            runs[f"LibMultiLabel, {workers} workers"] = side["all"]
    if "datasets" in options.against:
        tokenizer = folder / "tokenizer"
        runs["zoo, tokenizer"] = measured(sys.executable, MEASUREMENTS, "zoo", folder, tokenizer)["all"]
        for workers in WORKERS:
            parallel = {"TOKENIZERS_PARALLELISM": "false" if workers else "true"}
            side = measured(sys.executable, MEASUREMENTS, "datasets", folder, tokenizer, str(workers), **parallel)
            runs[f"datasets, map alone, {workers} workers"] = side["map"]
            runs[f"datasets, {workers} workers"] = side["all"]
    return runs


def speed(options: argparse.Namespace) -> dict[str, Any]:
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = copy_corpus(folder, options.documents)
        train_tokenizer(folder)
        write_for_peer(folder)
        for _ in range(options.rounds):
            rounds.append(one_round(folder, options))
            print({who: [round(s, 1) for s in seconds] for who, seconds in rounds[-1].items()}, flush=True)
    best = {who: [min(each[who][i] for each in rounds) for i in (0, 1)] for who in rounds[0]}

    def ratios(own: str, peer: str) -> list[float]:
        peers = [f"{peer}, {workers} workers" for workers in WORKERS]
        return [round(min(best[who][i] for who in peers) / best[own][i], 2) for i in (0, 1) if peers[0] in best]

    return {
        "documents": documents,
        "wall-clock seconds, CPU seconds": {who: [round(s, 2) for s in each] for who, each in best.items()},
        "documents per second": {who: round(documents / seconds[0]) for who, seconds in best.items()},
        "times as fast as LibMultiLabel": ratios("zoo, words", "LibMultiLabel"),
        "times as fast as datasets, map alone": ratios("zoo, tokenizer", "datasets, map alone"),
        "times as fast as datasets": ratios("zoo, tokenizer", "datasets"),
    }


def memory(options: argparse.Namespace) -> list[Any]:
    results = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, MEASUREMENTS, "generate", folder, str(size)], check=True)
            results.append(measured(sys.executable, MEASUREMENTS, "memory", folder, str(options.steps)))
            print(results[-1], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for_speed = verbs.add_parser("speed")
    for_speed.add_argument("--peer", default=sys.executable, help="Python interpreter with libmultilabel[nn]")
    for_speed.add_argument("--against", nargs="+", choices=PEERS, default=PEERS)
    for_speed.add_argument("--rounds", type=int, default=3)
    for_speed.add_argument("--documents", type=int, help="maximum number of documents of each split")
    for_speed.set_defaults(run=speed)
    for_memory = verbs.add_parser("memory")
    for_memory.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_200_000])
    for_memory.add_argument("--steps", type=int, default=300, help="number of training steps")
    for_memory.set_defaults(run=memory)
    options = parser.parse_args()
    print(json.dumps(options.run(options)))


if __name__ == "__main__":
    main()
