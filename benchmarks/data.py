"""What it costs to prepare a corpus: documents per second beside other libraries, and memory by number of documents.

    python benchmarks/data.py speed --peer PYTHON_WITH_LIBMULTILABEL --rounds 3
    python benchmarks/data.py memory --sizes 10000 100000 1200000

`speed` takes EURLEX57K from jsonl.gz to ready batches: fingerprint, reading, vocabulary, tokens, cache, and one pass
over all training batches. Beside it, in turn, each in a process of its own and without what it takes to import:

- LibMultiLabel's loading for networks, from its own text format, with the same pass; words on both sides.
- `datasets`, `map(batched=True)` with a fast tokenizer: tokens alone, no pass; the same tokenizer on both sides.

Peers are measured with and without worker processes, and their best counts. Seconds of computing stand beside those of
the clock, for other work on the machine stretches these alone. All caches are new in each round. `memory`
is the peak of anonymous memory while a generated corpus is prepared and while a model trains on it for some steps;
pages of mapped files, which the system takes back when it needs them, do not count. The last line is JSON.
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

from datamodules.text import files_in

PEER = Path(__file__).with_name("data_peer.py")
SIDE = Path(__file__).with_name("data_side.py")
PEERS = ["libmultilabel", "datasets"]
WORKERS = (0, 2)  # of the peers


def copy_corpus(folder: Path, documents: int | None) -> int:
    """EURLEX57K in a folder, or so many documents of each split; returns how many there are."""
    size = 0
    for split, path in files_in(Path(os.environ["ZOO_DATA"]) / "eurlex57k").items():
        with gzip.open(path, "rb") as source, gzip.open(folder / f"{split}.jsonl.gz", "wb") as sink:
            for line in islice(source, documents):
                sink.write(line)
                size += 1
    return size


def write_for_peer(folder: Path) -> None:
    """As lines of labels, a tab and the text, without the tabs and line breaks that the text has."""
    for path in folder.glob("*.jsonl.gz"):
        with (
            gzip.open(path, "rt", encoding="utf8") as source,
            (folder / path.name.replace("jsonl.gz", "txt")).open("w", encoding="utf8") as sink,
        ):
            for row in map(json.loads, source):
                sink.write(f"{' '.join(row['labels'])}\t{' '.join(row['text'].split())}\n")
    (folder / "vectors.txt").write_text("the 0.0\n")


def train_tokenizer(folder: Path) -> None:
    """A tokenizer like BERT's, learned from the first training documents."""
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
    """The JSON that a process writes last; its caches are new."""
    with tempfile.TemporaryDirectory() as cache:
        variables = os.environ | {"HF_DATASETS_CACHE": cache, "ZOO_CACHE": cache} | environment
        done = subprocess.run([*map(str, command)], env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def one_round(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the clock and of computing, by what was done."""
    runs: dict[str, list[float]] = {}
    if "libmultilabel" in options.against:
        runs["zoo, words"] = measured(sys.executable, SIDE, "zoo", folder, "word")["all"]
        for workers in WORKERS:
            side = measured(options.peer, PEER, folder, str(workers))
            runs[f"LibMultiLabel, {workers} workers"] = side["all"]
    if "datasets" in options.against:
        tokenizer = folder / "tokenizer"
        runs["zoo, tokenizer"] = measured(sys.executable, SIDE, "zoo", folder, tokenizer)["all"]
        for workers in WORKERS:
            parallel = {"TOKENIZERS_PARALLELISM": "false" if workers else "true"}
            side = measured(sys.executable, SIDE, "datasets", folder, tokenizer, str(workers), **parallel)
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
        "seconds of the clock, of computing": {who: [round(s, 2) for s in each] for who, each in best.items()},
        "documents per second": {who: round(documents / seconds[0]) for who, seconds in best.items()},
        "times as fast as LibMultiLabel": ratios("zoo, words", "LibMultiLabel"),
        "times as fast as datasets, map alone": ratios("zoo, tokenizer", "datasets, map alone"),
        "times as fast as datasets": ratios("zoo, tokenizer", "datasets"),
    }


def memory(options: argparse.Namespace) -> list[Any]:
    results = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, SIDE, "generate", folder, str(size)], check=True)
            results.append(measured(sys.executable, SIDE, "memory", folder, str(options.steps)))
            print(results[-1], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("speed")
    one.add_argument("--peer", default=sys.executable, help="a Python that has libmultilabel[nn]")
    one.add_argument("--against", nargs="+", choices=PEERS, default=PEERS)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--documents", type=int, help="so many of each split; all by default")
    one.set_defaults(run=speed)
    other = verbs.add_parser("memory")
    other.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_200_000])
    other.add_argument("--steps", type=int, default=300, help="of training")
    other.set_defaults(run=memory)
    options = parser.parse_args()
    print(json.dumps(options.run(options)))


if __name__ == "__main__":
    main()
