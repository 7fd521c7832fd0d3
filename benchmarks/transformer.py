"""Training throughput of `zoo fit` with a transformer against Hugging Face's Trainer with the same encoder.

    pip install accelerate
    python benchmarks/transformer.py FOLDER_OR_NAME [--max_length T] [--documents N] [--batch_size B] [--rounds R]

Both train for one epoch on the same documents of Reuters, with the same batch size, optimizer and clipping, and write a
log. Rounds alternate, and the best round of each counts. Both pad a batch to its longest document, and are measured
with random batches (the default of Hugging Face) and with batches of similar length (the default of the zoo).
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from throughput import Clock

from backbones import Transformer
from callbacks import LastCheckpoint, RunReport, StageProgressBar, StageSchedule
from datamodules import Reuters, samplers
from datamodules.batch import LabelSpace
from heads import Experts, Head, Linear
from heads.experts.multi_layer import ExpertSettings
from zoo.training.checkpoint_io import AtomicCheckpointIO
from zoo.training.loggers import WandbSettings, close_run, make_loggers
from zoo.training.module import ZooModule

RATE, CLIP, LOG_EVERY = 5e-5, 1.0, 20
ONE = [ExpertSettings("cls", -1)]
THREE = [ExpertSettings("label_attention", 1), ExpertSettings("label_attention", 3), *ONE]


def hugging_face_seconds(data: Reuters, name: str, grouped: bool, folder: Path) -> float:
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    labels = data.space.num_labels
    model = AutoModelForSequenceClassification.from_pretrained(
        name, num_labels=labels, problem_type="multi_label_classification", dtype=torch.float32
    )
    rows = data.prepared.rows("train")
    truth = rows.targets().dense(labels)
    documents = [{"input_ids": rows[[i]].ids[0].tolist(), "labels": truth[i].tolist()} for i in range(len(rows))]
    settings = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=data.batch_size,
        num_train_epochs=1,
        learning_rate=RATE,
        weight_decay=0.01,
        max_grad_norm=CLIP,
        train_sampling_strategy="group_by_length" if grouped else "random",
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
    )
    collate = DataCollatorWithPadding(AutoTokenizer.from_pretrained(name))
    trainer = Trainer(model, settings, train_dataset=documents, data_collator=collate)
    return float(trainer.train().metrics["train_runtime"])


def zoo_seconds(data: Reuters, name: str, pool: int, head: Callable[[int, LabelSpace], Head], folder: Path) -> float:
    """Time of an epoch; `pool` is the number of batches that are sorted by length together."""
    pl.seed_everything(0, verbose=False)
    samplers.POOL = pool
    optimizer: Any = partial(torch.optim.AdamW, lr=RATE, weight_decay=0.01, fused=True)
    module = ZooModule(data.space, lambda space: Transformer(space, name), head, optimizer)
    clock = Clock()
    trainer = pl.Trainer(
        max_epochs=1,
        limit_val_batches=0,
        logger=make_loggers(folder, "transformer", WandbSettings(mode="offline")),
        callbacks=[LastCheckpoint(), StageSchedule(), StageProgressBar(), RunReport("transformer"), clock],
        gradient_clip_val=CLIP,
        log_every_n_steps=LOG_EVERY,
        use_distributed_sampler=False,
        enable_model_summary=False,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=data)
    data.trainer = None
    close_run()
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", help="folder, or name on the Hugging Face hub")
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--documents", type=int, default=320)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    for name in ("pytorch_lightning", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    data = Reuters(
        tokenizer=given.encoder, max_length=given.max_length, batch_size=given.batch_size, limit_train=given.documents
    )
    lengths = data.prepared.rows("train").lengths
    print(f"{len(lengths):,} documents, {lengths.mean():.0f} tokens on average, {given.max_length} at most")
    bucketed = samplers.POOL
    plain = partial(Linear, dropout=0.1)
    sides: dict[str, Callable[[Path], float]] = {
        "Hugging Face, random batches": partial(hugging_face_seconds, data, given.encoder, False),
        "Hugging Face, grouped by length": partial(hugging_face_seconds, data, given.encoder, True),
        "zoo, random batches": partial(zoo_seconds, data, given.encoder, 1, plain),
        "zoo, grouped by length": partial(zoo_seconds, data, given.encoder, bucketed, plain),
        "zoo, one expert": partial(zoo_seconds, data, given.encoder, bucketed, partial(Experts, experts=ONE)),
        "zoo, three experts": partial(
            zoo_seconds, data, given.encoder, bucketed, partial(Experts, experts=THREE, diversity=0)
        ),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for side, run in sides.items():
                seconds[side].append(run(Path(folder) / f"{side} {number}"))
    best = {side: min(times) for side, times in seconds.items()}
    base = best["Hugging Face, random batches"]
    for side, time in best.items():
        print(
            f"{side:32} {len(lengths) / time:6.1f} documents/s, {base / time:.3f} times Hugging Face in random batches"
        )
    ratio = best["zoo, three experts"] / best["zoo, one expert"]
    print(f"three experts take {ratio:.3f} times as long as one ({os.cpu_count()} cores, best of {given.rounds})")


if __name__ == "__main__":
    main()
