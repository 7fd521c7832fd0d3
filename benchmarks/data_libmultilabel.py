"""Time of LibMultiLabel from text files to one pass over the training batches; run by its own interpreter.

    PYTHON benchmarks/data_libmultilabel.py FOLDER WORKERS

FOLDER contains {train,val,test}.txt in its format, and vectors.txt with one word vector, which its vocabulary requires.
Labels, vocabulary and batches are built as in its own trainer.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
from libmultilabel.nn import data_utils  # type: ignore[import-not-found]


def now() -> tuple[float, float]:
    """Wall-clock time, and CPU time of this process and its terminated children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    folder, workers = sys.argv[1], int(sys.argv[2])
    start = now()
    train, val, test = (f"{folder}/{split}.txt" for split in ("train", "val", "test"))
    datasets = data_utils.load_datasets(train, test, val)
    words, _ = data_utils.load_or_build_text_dict(datasets["train"], embed_file=f"{folder}/vectors.txt", silent=True)
    labels = data_utils.load_or_build_label(datasets)
    loader = data_utils.get_dataset_loader(
        datasets["train"],
        labels,
        torch.device("cpu"),
        max_seq_length=500,
        batch_size=64,
        shuffle=True,
        data_workers=workers,
        word_dict=words,
    )
    seen = sum(len(batch["text"]) for batch in loader)
    del loader  # terminates its worker processes, so that their CPU time counts
    assert seen == len(datasets["train"])
    print(json.dumps({"all": [after - before for before, after in zip(start, now(), strict=True)]}))


if __name__ == "__main__":
    main()
